"""Rendered documents of each variant."""

from cluster.stage.stage import request_of
from eks.cluster import EksCluster
from eks.document import Document
from eks.render import rendered
from eks.services import TENSORBOARD, page_secret
from eks.staging import staging_job


def documents(of: EksCluster) -> list[Document]:
    """All that this cluster file makes: what is rendered, a staging and what opens a page."""
    found = [one for noun in rendered(of).values() for one in noun]
    job = staging_job(of, request_of("s3://bucket/in", f"{of.shared}/data", environment={"AWS_REGION": "us-east-1"}))
    assert job.environment
    secret = page_secret(of, TENSORBOARD, token="t" * 32, password="sha256:a:b", certificate=("PEM", "PEM"))
    local = staging_job(of, request_of("s3://bucket/in", "/local/in")).documents if of.settings.local else []
    return [*found, *job.documents, *local, job.environment, secret]
