"""`[eks]` in a cluster file: read the same by the stack's reader and by Kubernetes', each mistake by its line and name."""

from pathlib import Path

import pytest

from cfn import in_stack
from cluster.clusterfile import text as clusterfile
from cluster.clusterfile.eks import EksSettings
from cluster.errors import ConfigError
from cluster.inventory import load_cluster
from eks.cluster import load_eks, of_type

HEAD = 'name = "Trainings"\n[access]\nssh_from = "203.0.113.7/32"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "cluster.toml"
    path.write_text(text)
    return path


def test_what_is_written_is_read_by_all(tmp_path: Path) -> None:
    """The file that `stack.init` writes with `[eks]` set: the stack, the bare cluster and Kubernetes take it alike."""
    wanted = EksSettings(
        context="arn:aws:eks:us-east-1:123456789012:cluster/trainings",
        namespace="team-a",
        image="123456789012.dkr.ecr.us-east-1.amazonaws.com/dlami:1.0",
        version="1.36",
        priority_class="high",
        shm_gib=64,
        ttl_seconds=3600,
        allow_cidrs=("203.0.113.7/32", "198.51.100.0/24"),
        efs="fs-0123456789abcdef0",
        fsx="fs-0123456789abcdef0:abcdefgh",
    )
    given = {f"eks.{name}": getattr(wanted, name) for name in EksSettings.__dataclass_fields__}
    path = write(tmp_path, clusterfile.render({"access.ssh_from": "203.0.113.7/32", **given}))
    (tmp_path / "hosts").write_text("10.0.0.1 slots=1\n")

    assert wanted == clusterfile.read(path).eks
    assert wanted == load_eks(str(tmp_path)).settings
    assert "training" == load_cluster(str(tmp_path)).name


def test_a_file_without_the_table_has_its_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + '[nodes]\ninstance_type = ["p5.48xlarge", "p4d.24xlarge"]\nworkers = 3\n')
    found = load_eks(str(tmp_path))

    assert EksSettings() == found.settings == clusterfile.read(path).eks
    assert (4, "p5.48xlarge", 8, 32) == (found.nodes, found.instance_type, found.slots, found.efa)
    assert ("p4d.24xlarge",) == found.other_types
    got = of_type(found, "p4d.24xlarge")
    assert ("p4d.24xlarge", 8, 4, ()) == (got.instance_type, got.slots, got.efa, got.other_types)
    assert ("Trainings", "trainings") == (found.name, found.object_name)
    assert {"app.kubernetes.io/part-of": "dlami-cluster", "dlami/cluster": "trainings"} == found.labels
    assert ("/efs", "") == (found.shared, found.fsx_mount)


BAD = [
    ("contxt = 'a'", "eks.contxt: no such field; did you mean 'eks.context'?"),
    ("context = 'a b'", "eks.context: 'a b' is no context's name; choose one of `kubectl config get-contexts`"),
    ("namespace = 'Team'", "eks.namespace: 'Team' is no namespace's name; use lower case letters"),
    ("namespace = ''", "eks.namespace: '' is no namespace's name"),
    ("namespace = 'kube-system'", "eks.namespace: 'kube-system' is Kubernetes' own"),
    ("image = 'dlami'", "eks.image: 'dlami' is no image with a tag; write it like 'registry/name:tag'"),
    ("image = 1", "eks.image: 1 is not text in quotes"),
    ("version = '1.3'", "eks.version: '1.3' is no version of EKS; write it like '1.35'"),
    ("version = 1.35", "eks.version: 1.35 is not text in quotes"),
    ("priority_class = 'A B'", "eks.priority_class: 'A B' is no priority class's name"),
    ("shm_gib = 0", "eks.shm_gib: 0 is outside 1 to 1024; 8 suits most trainings"),
    ("shm_gib = 1.5", "eks.shm_gib: 1.5 is not a whole number"),
    ("ttl_seconds = 1", "eks.ttl_seconds: 1 is outside 60 to 31536000; 86400 is a day"),
    ("allow_cidrs = '203.0.113.7/32'", "eks.allow_cidrs: '203.0.113.7/32' is not a list of texts; write it like"),
    ("allow_cidrs = [1]", "eks.allow_cidrs: 1 is not text in quotes"),
    ("allow_cidrs = ['home']", "eks.allow_cidrs: 'home' is not an IPv4 network; write it like '203.0.113.7/32'"),
    (
        "allow_cidrs = ['0.0.0.0/0']",
        "eks.allow_cidrs: '0.0.0.0/0' opens the cluster to the internet; give the networks",
    ),
    ("allow_cidrs = ['10.0.0.0/8', '10.0.0.0/8']", "eks.allow_cidrs: has a network twice"),
    ("efs = 'efs'", "eks.efs: 'efs' is no file system; write an id like 'fs-0123456789abcdef0'"),
    ("fsx = 'fs-0123456789abcdef0'", "eks.fsx: 'fs-0123456789abcdef0' is no Lustre file system with its mount name"),
]


@pytest.mark.parametrize(("line", "said"), BAD)
def test_a_mistake_is_named_by_both_readers(line: str, said: str, tmp_path: Path) -> None:
    """With its line, before anything is asked or made."""
    path = write(tmp_path, f"{HEAD}[eks]\n{line}\n")
    for use in (lambda: clusterfile.read(path), lambda: load_eks(str(tmp_path))):
        with pytest.raises(ConfigError) as error:
            use()
        assert f"{path}:5: {said}" in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name = "a-"', "cluster.toml:1: name: 'a-' does not fit Kubernetes"),
        ("[nodes]\nworkers = 64", "cluster.toml:2: nodes.workers: 64 is outside 0 to 63"),
        ('[nodes]\ninstance_type = "p99.large"', "nodes.instance_type: 'p99.large' is not in our table of GPU"),
    ],
)
def test_what_kubernetes_cannot_have_is_refused(text: str, said: str, tmp_path: Path) -> None:
    write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        load_eks(str(tmp_path))
    assert said in str(error.value)


def test_the_bare_clusters_stack_does_not_hold_it(tmp_path: Path) -> None:
    """It is another stack's: a change of it would make every bare cluster differ from its file for good."""
    bare = clusterfile.read(write(tmp_path, HEAD))
    both = clusterfile.read(write(tmp_path, f'{HEAD}[eks]\nnamespace = "team-a"\n'))
    assert in_stack.values(bare) == in_stack.values(both)
