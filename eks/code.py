"""Transfer of the operator's code to a job's launcher, in a Secret of the job if it is small enough."""

import base64
import gzip
import io
import json
import secrets
from pathlib import Path
from typing import Any

from cluster.code.archive import write_archive
from cluster.code.onhost import store
from cluster.code.snapshot import Snapshot
from cluster.errors import ClusterError, ConfigError
from eks.document import JOB, Document, document

MOST_BYTES = 1_000_000  # of a Secret's values together Kubernetes takes 1 MiB
CODE_FOLDER = "/run/dlami/code"  # where that Secret is mounted in the launcher
ARCHIVE, ABOUT = "code.tar.gz", "about.json.gz"


def secret_of(snapshot: Snapshot, job: str, cluster: str, namespace: str) -> Document:
    """Return the code as a Secret of a job. Raises ConfigError if it is too large, or if a file has changed since."""
    from cluster.code.deliver import description

    archive = io.BytesIO()
    write_archive(snapshot, archive)
    about = {"about": description(snapshot), "rows": snapshot.rows}
    files = {ARCHIVE: archive.getvalue(), ABOUT: json.dumps(about).encode()}
    packed = {name: gzip.compress(data, mtime=0) for name, data in files.items()}
    if (size := sum(map(len, packed.values()))) > MOST_BYTES:
        raise ConfigError(
            f"the code is {size / 1e6:.1f} MB when compressed, and a Secret of Kubernetes holds {MOST_BYTES / 1e6:g}: "
            "leave files out with --exclude, or put the code on the shared folder and start it there with --no-code"
        )
    return document(
        "v1",
        "Secret",
        secret_name(job),
        cluster,
        namespace=namespace,
        metadata={"labels": {JOB: job}},
        type="Opaque",
        data={name: base64.b64encode(data).decode() for name, data in packed.items()},
    )


def secret_name(job: str) -> str:
    """Return the name of the Secret with a job's code."""
    return f"{job}-code"


def put_into_store(mounted: Path, digest: str) -> None:
    """Copy the code from a mounted Secret to this host's store, as `inv train.run` delivers it.

    Raises ClusterError.
    """
    try:
        said: dict[str, Any] = json.loads(gzip.decompress((mounted / ABOUT).read_bytes()))
        answer = store.answer(digest, said["about"], said["rows"])
        if not answer.get("is_there"):
            part = f"{said['about']['content']}.{secrets.token_hex(4)}.part"
            place = Path(answer["folder"]) / part
            place.touch(mode=0o600, exist_ok=False)
            place.write_bytes(gzip.decompress((mounted / ARCHIVE).read_bytes()))
            answer = store.answer(digest, said["about"], said["rows"], part)
    except (OSError, EOFError, ValueError, KeyError) as e:
        raise ClusterError(f"the code of this job cannot be kept in {store.FOLDER}: {e}") from e
    if why := answer.get("error"):
        raise ClusterError(f"the code of this job did not arrive: {why}")
