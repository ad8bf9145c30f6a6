"""What tests of Kubernetes documents share: kubectl, helm and the strict schemas; the lab's API without a lab."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.kube.server import ApiServer
from lab.kube.store import Store
from tests.eks.few_pods import FewPods
from tests.eks.strict import TOOLS, KubeTools


@pytest.fixture(scope="session")
def kube() -> KubeTools:
    """kubectl 1.37, helm 4.3 and the schemas of 1.37; without them the test is skipped and says what gets them."""
    if not TOOLS.is_dir():
        pytest.skip("kubectl and helm are not here: scripts/install-kube.sh gets them")
    return KubeTools(TOOLS)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def logs(tmp_path: Path) -> FewPods:
    return FewPods(tmp_path / "log")


@pytest.fixture
def api(store: Store, logs: FewPods, tmp_path: Path) -> Iterator[ApiServer]:
    """An API that serves the store."""
    server = ApiServer(store, logs, tmp_path, "api")
    yield server
    server.close()


@pytest.fixture
def operators_kubectl(api: ApiServer, kube: KubeTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own way to kubectl leads to that API."""
    for name, value in {
        "KUBECONFIG": api.kubeconfig,
        "KUBECACHEDIR": tmp_path / "cache",
        "DLAMI_KUBECTL": kube.kubectl,
    }.items():
        monkeypatch.setenv(name, str(value))
