"""cluster.toml, with and without a stack: what is wrong is refused by its line and its name, and nothing else is touched."""

import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.clusterfile import schema
from cluster.clusterfile import text as clusterfile
from cluster.clusterfile.edit import with_fields
from cluster.clusterfile.model import ClusterFile
from cluster.errors import ConfigError
from cluster.inventory import ROOT, load_cluster

GOOD = clusterfile.render({"access.ssh_from": "203.0.113.7/32", "ssh.key": "~/k", "ssh.gateway": "203.0.113.9"})


def cluster_in(folder: Path, toml: str | bytes) -> Path:
    """A cluster of one host with this cluster.toml."""
    (folder / "hosts").write_text("10.0.0.1 slots=1\n")
    path = folder / "cluster.toml"
    path.write_bytes(toml if isinstance(toml, bytes) else toml.encode())
    return path


def test_every_type_of_a_field_is_one_that_an_operator_is_told() -> None:
    """A field of a type that the reader does not know would refuse every value of it, by a KeyError."""

    def leaves(kind: Any) -> list[Any]:
        return [
            one for f in schema.by_name(kind).values() for one in (leaves(f.type) if is_dataclass(f.type) else [f.type])
        ]

    assert {str, bool, float, int} <= set(leaves(ClusterFile))
    assert [] == [one for one in leaves(ClusterFile) if one not in schema.KINDS and int | None != one]


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ('shraed = "/efs"', "cluster.toml:1: shraed: no such field; did you mean 'shared'?"),
        ('\n[ssh]\nknow_hosts = "k"', "cluster.toml:3: ssh.know_hosts: no such field; did you mean 'ssh.known_hosts'?"),
        ('[ssh]\nkeyfile = "k"', "cluster.toml:2: ssh.keyfile: no such field; did you mean 'ssh.key'?"),
        ('[ssh]\nkey = ""', "cluster.toml:2: ssh.key: is empty; give it a value, or leave the line out"),
        ('ssh = {user = ""}', "cluster.toml:1: ssh.user: is empty"),
        ('ssh.key = "~nosuchuser/k"', "cluster.toml:1: ssh.key: '~nosuchuser/k': no user of that name is here"),
        ('[ssh]\nport = "22"', "cluster.toml:2: ssh.port: '22' is not a whole number; write it like 1"),
        ("[ssh]\nport = 70000", "cluster.toml:2: ssh.port: 70000 is not a port"),
        ("[ssh]\nport = true", "cluster.toml:2: ssh.port: True is not a whole number"),
        ('[ssh]\nuser = "-oProxyCommand=x"', "cluster.toml:2: ssh.user: '-oProxyCommand=x' is not a login name"),
        ('[ssh]\ngateway = "a b"', "cluster.toml:2: ssh.gateway: 'a b' is not an address"),
        ("[[ssh]]\n", "cluster.toml:1: ssh: is a table; write [ssh] on a line of its own"),
        ('shared = "efs"', "cluster.toml:1: shared: 'efs' is not an absolute path"),
        ('name = ""', "cluster.toml:1: name: is empty"),
        ('shared_by = "me"', "cluster.toml:1: shared_by: 'me' is unknown; choose 'all', or 'master'"),
        ('shared_by = "master"\n[nodes]\nworkers = 1', "cluster.toml:1: shared_by: is for a cluster without a stack"),
        ('name = "a\\u001bb"', "cluster.toml:1: name: 'a\\x1bb' has a character that cannot be printed"),
        ("[nodes]\nworkes = 3", "cluster.toml:2: nodes.workes: no such field; did you mean 'nodes.workers'?"),
        ("x = " + "[" * 5000, "cluster.toml:1: is nested too deeply"),
        ("x = " + "{a=" * 5000, "cluster.toml:1: is nested too deeply"),
        ("name = 'a'\nssh.port = " + "9" * 5000, "cluster.toml:2: a number is too long"),
        ("ssh.port = 0x" + "f" * 5000, "cluster.toml:1: ssh.port: is too long a number"),
        (b"name = '\xff'", "cluster.toml:1: a byte is no UTF-8 (0xff)"),
        ("name =", "cluster.toml is not valid TOML: Invalid value (at end of document)"),
    ],
)
def test_a_mistake_is_named_without_a_stack_too(toml: str | bytes, said: str, tmp_path: Path) -> None:
    """Ignored, it would send every task another way than its author thinks."""
    cluster_in(tmp_path, toml)
    with pytest.raises(ConfigError) as error:
        load_cluster(str(tmp_path))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("field", ["name", "project", "shared", "results", "ssh.gateway", "nodes.instance_type", "x"])
def test_a_value_as_long_as_a_book_is_told_in_short(field: str, tmp_path: Path) -> None:
    """Without its middle; which it is, what is wrong and what to write are told all the same."""
    line = f'{field.rpartition(".")[2]} = "{"[" * 5000}z"\n'
    text, found = re.subn(rf"(?m)^{line.partition(' ')[0]} *=.*\n", line, GOOD, count=1)
    path, said = cluster_in(tmp_path, text if found else line + text), []
    for use in (lambda: load_cluster(str(path.parent)), lambda: clusterfile.read(path)):
        try:
            use()
        except ConfigError as e:
            said.append(str(e))
    assert said
    assert [] == [one for one in said if len(one) >= 1000 or f"{field}: " not in one]


WORDS = ["[", "]", "{", "}", "=", '"', "'", "\n", "#", ".", "ssh", "[ssh]\n", "[nodes]\n", "port", "key", "name", "é"]
VALUES = ["9" * 5000, "~nosuchuser", "0x" + "f" * 40, "nan", "inf", "1979-05-27", "true", '""', "[" * 1200, "a." * 1200]
PARTS = st.sampled_from([*WORDS, *VALUES, "\x00"])


@given(
    inserts=st.lists(st.tuples(st.integers(0, len(GOOD)), PARTS | st.text(max_size=5)), max_size=4),
    cut=st.tuples(st.integers(0, len(GOOD)), st.integers(0, 60)),
    whole=st.lists(PARTS, max_size=8).map("".join) | st.none(),
)
def test_no_file_is_a_traceback(
    inserts: list[tuple[int, str]], cut: tuple[int, int], whole: str | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever stands in it, the answer is a cluster or one sentence with the file's name."""
    text = GOOD[: cut[0]] + GOOD[sum(cut) :] if whole is None else whole
    for place, what in inserts:
        text = text[:place] + what + text[place:]
    path = cluster_in(tmp_path_factory.getbasetemp(), text.encode("utf-8", "surrogatepass"))
    for use in (lambda: load_cluster(str(path.parent)), lambda: clusterfile.read(path)):
        try:
            use()
        except ConfigError as e:
            assert str(path) in str(e)
            assert len(str(e)) < 1000


EDITED = [
    '[ssh] # how I get in\nuser = "me"\n[nodes]\nworkers = 3 # three\n',
    '[ ssh ]\n# my own\nuser = "me"\n',
    'ssh = {user = "me"}\n',
    'ssh.user = "me"\nname = "x"\n',
    'name = "x" # no table yet',
    '[ssh]\nuser = "me"\n\n# about the nodes\n[nodes]\nworkers = 1',
    '[ssh]\n"gateway" = "198.51.100.1"\n',
    "",
    GOOD,
]


@pytest.mark.parametrize("toml", EDITED)
def test_fields_are_set_and_all_else_stays_as_it_was(toml: str) -> None:
    """However the table is written: the other values are the same, every comment is there, twice is once."""
    wanted = {"gateway": "203.0.113.5", "known_hosts": "known_hosts"}
    once = with_fields(toml, "ssh", wanted, "inv hosts.write")
    before, after = tomllib.loads(toml), tomllib.loads(once)
    assert {**before, "ssh": {**before.get("ssh", {}), **wanted}} == after
    assert [line for line in toml.split("\n") if "#" in line and line not in once] == []
    assert once == with_fields(once, "ssh", wanted, "inv hosts.write")


@pytest.mark.parametrize(
    ("text", "stack"),
    [
        ("", ""),
        ('name = "a"\nregion = "us-east-1"\n', ""),  # of a lab or by hand
        ('name = "a"\nregion = "eu-west-1"\n[nodes]\nworkers = 3\n', "eu-west-1/a"),
        ('name = "a"\n[nodes]\nworkers = 3\n', ""),
    ],
)
def test_a_cluster_knows_of_which_stack_it_is(tmp_path: Path, text: str, stack: str) -> None:
    """So that a job's supervisor can have a dead host of it replaced; a guess would end somebody's instance."""
    (tmp_path / "hosts").write_text("a slots=1\n")
    (tmp_path / "cluster.toml").write_text(text)
    assert stack == load_cluster(str(tmp_path)).stack


def test_a_field_is_its_line_in_a_dataclass(tmp_path: Path) -> None:
    """CONTRIBUTING's recipe to the letter: one line and its text make a field for hosts, for a stack and for `stack.init`."""
    shutil.copytree(ROOT / "cluster", tmp_path / "cluster", ignore=shutil.ignore_patterns("__pycache__", "lab"))
    table = tmp_path / "cluster/clusterfile/storage.py"
    line = '    demo_gib: int = 3\n    """Made up."""\n\n    def __post_init__'
    table.write_text(table.read_text().replace("\n    def __post_init__", line, 1))
    folder = tmp_path / "own"
    folder.mkdir()
    cluster_in(folder, f"{GOOD}\n".replace("[storage]\n", "[storage]\ndemo_gib = 7\n"))
    code = (
        "from pathlib import Path\nfrom cluster.clusterfile import text\nfrom cluster.inventory import ROOT, load_cluster\n"
        f"load_cluster({str(folder)!r})\nprint(text.read(Path({str(folder)!r}, 'cluster.toml')).storage.demo_gib)\n"
        "print('# Made up.\\ndemo_gib = 3\\n' in text.render())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert "7\nTrue\n" == done.stdout, done.stderr


def test_plain_hosts_load_without_what_a_stack_needs(tmp_path: Path) -> None:
    """A cluster of one's own hosts needs neither AWS's library nor the templates', nor what Kubernetes needs."""
    cluster_in(tmp_path, 'name = "x"\n[ssh]\nuser = "me"\n')
    code = (
        "import sys\nfor name in ('boto3', 'botocore', 'troposphere', 'yaml', 'cfn'): sys.modules[name] = None\n"
        f"from cluster.inventory import ROOT, load_cluster\nprint(load_cluster({str(tmp_path)!r}).access.user)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "me\n" == done.stdout, done.stderr
