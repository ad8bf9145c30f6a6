"""From hosts and facts to the exact mpirun command."""

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.launch.mpirun import JobTags, Launch, command_line, plan_launch, session_folders, shown
from cluster.launch.profiles import NOT_SET, PROFILES
from cluster.ssh.limits import check_environment
from tests.cluster.mpirun_words import exported, facts_of

HOSTS = tuple(Host(rank=r, address=f"10.0.1.{10 + r}", slots=8) for r in range(4))


def words_for(facts: Any, **options: Any) -> Any:
    return words_of(plan_launch(HOSTS, facts, **options))


def words_of(launch: Launch) -> Any:
    return command_line(
        launch,
        ["python", "-m", "trainer.resnet50"],
        hostfile="/efs/jobs/x/hosts",
        workdir="/efs/jobs/x/code",
        output="/efs/jobs/x/ranks",
        job=JobTags(id="x", folder="/efs/jobs/x", attempt=2),
    )


def mca(words: Any) -> Any:
    return {words[i + 1]: words[i + 2] for i, w in enumerate(words) if w == "--mca"}


def test_the_command_for_gpu_hosts_with_efa() -> None:
    """Absolute mpirun, every slot a rank, only the hosts' own network, the EFA variables."""
    words = words_for({h: facts_of(has_efa=True) for h in HOSTS})

    assert ["/opt/amazon/openmpi/bin/mpirun", "-np", "32", "--hostfile", "/efs/jobs/x/hosts"] == words[:5]
    assert "--allow-run-as-root" not in words
    assert {
        "pml": "ob1",
        "btl_tcp_if_include": "ens5",
        "oob_tcp_if_include": "ens5",
        "plm_rsh_no_tree_spawn": "1",
        "btl_vader_single_copy_mechanism": "none",
        "btl_tcp_flags": "send",
        "orte_launch_agent": "env DLAMI_JOB=x DLAMI_JOB_FOLDER=/efs/jobs/x DLAMI_ATTEMPT=2 orted",
    }.items() <= mca(words).items()
    assert {
        "FI_PROVIDER": "efa",
        "NCCL_NET": "AWS Libfabric",
        "NCCL_SOCKET_IFNAME": "ens5",
        "DLAMI_JOB": "x",
        "HOROVOD_FUSION_THRESHOLD": "67108864",
    }.items() <= exported(words).items()
    assert "/opt/amazon/openmpi/lib" in exported(words)["LD_LIBRARY_PATH"].split(":"), "of the mpirun that is called"
    assert ["python", "-m", "trainer.resnet50"] == words[-3:]


def test_open_mpi_s_folder_has_a_name_that_nobody_can_take_first() -> None:
    """Its own name is made of host and user: one folder of another's there would end every training of this user's."""
    tags = JobTags(id="x" * 101, folder="/efs/jobs/x", attempt=2)
    first, second = tags.session_folder(), tags.session_folder()
    assert first != second
    assert first.startswith(f"{session_folders(tags.id)}.2.") and len(first) < 40
    assert mca(words_for({h: facts_of() for h in HOSTS}))["orte_tmpdir_base"].startswith(f"{session_folders('x')}.2.")


def test_hosts_without_gpus_get_the_tcp_profile_and_yield_when_crowded() -> None:
    """Eight ranks on eight cores leave none for Horovod's waiting thread."""
    crowded = words_for({h: facts_of(gpus=0, cores=8) for h in HOSTS})
    roomy = words_for({h: facts_of(gpus=0, cores=64) for h in HOSTS})

    assert ("1", "send") == (mca(crowded)["mpi_yield_when_idle"], mca(crowded)["btl_tcp_flags"])
    assert "mpi_yield_when_idle" not in mca(roomy)
    assert not any(name.startswith(("NCCL", "FI_")) for name in exported(crowded))


@pytest.mark.parametrize(
    ("odd", "profile"), [({"has_efa": False}, "ena"), ({"gpus": 0}, "tcp"), ({"gpus": None}, "tcp"), ({}, "efa")]
)
def test_a_profile_needs_what_it_uses_on_every_host(odd: Any, profile: Any) -> None:
    """One host without EFA, or without a GPU, and nobody uses it."""
    facts = {h: facts_of(has_efa=True) if h.rank != 2 else facts_of(**{"has_efa": True, **odd}) for h in HOSTS}

    assert profile == plan_launch(HOSTS, facts).profile.name


def test_the_operator_s_variables_win() -> None:
    """Over the profile's, but not over what tells the job's processes from others."""
    given = {"NCCL_DEBUG": "INFO", "HOROVOD_CYCLE_TIME": "9", "MINE": "1", "DLAMI_JOB": "forged", "DLAMI_ATTEMPT": "9"}
    seen = exported(words_for({h: facts_of() for h in HOSTS}, environment=given))

    assert ("INFO", "9", "1") == (seen["NCCL_DEBUG"], seen["HOROVOD_CYCLE_TIME"], seen["MINE"])
    assert ("x", "2", "/efs/jobs/x") == (seen["DLAMI_JOB"], seen["DLAMI_ATTEMPT"], seen["DLAMI_JOB_FOLDER"])


def test_a_folder_that_mpirun_would_split_is_left_out_of_its_daemons_words() -> None:
    """Ranks have it all the same."""
    tags = JobTags(id="x", folder="/my files/jobs/x")

    assert "DLAMI_JOB=x DLAMI_ATTEMPT=1" == tags.words()
    assert "/my files/jobs/x" == tags.variables()["DLAMI_JOB_FOLDER"]


@pytest.mark.parametrize(
    ("addresses", "device"),
    [
        (["10.0.1.11/24 ens5", "192.168.0.3/24 eth0"], "=ens5"),
        (["10.0.1.12/24 eth0", "192.168.0.4/24 ens5"], "=eth0"),
        (["10.0.1.1/24 eth0", "10.0.1.10/24 ens5"], "=ens5"),
        (["172.16.0.1/24 docker0"], ""),
    ],
)
def test_nccl_gets_the_device_of_its_own_host(
    addresses: list[str], device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no networks, and a host may have another's device name on a network that the others do not reach."""
    facts = {h: facts_of(interface="eth0" if h.rank == 2 else "ens5", gpus=8) for h in HOSTS}
    lines = "".join(f"echo '2: {one.split()[1]}    inet {one.split()[0]} brd'\n" for one in addresses)
    (tmp_path / "ip").write_text(f"#!/bin/sh\n{lines}")
    (tmp_path / "ip").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    words = words_for(facts)
    starts = words[words.index("sh") : words.index("python")]

    assert "10.0.1.0/24" == mca(words)["btl_tcp_if_include"]
    assert "NCCL_SOCKET_IFNAME" not in exported(words)
    told = subprocess.run([*starts, "sh", "-c", "echo $NCCL_SOCKET_IFNAME; echo \"$1\"", "x", "two words"],
        capture_output=True, text=True, check=True)  # fmt: skip
    assert [device, "two words"] == told.stdout.splitlines()


def test_a_device_that_the_operator_gave_stays() -> None:
    """On hosts that differ, too."""
    facts = {h: facts_of(interface="eth0" if h.rank == 2 else "ens5", gpus=8) for h in HOSTS}
    words = words_for(facts, environment={"NCCL_SOCKET_IFNAME": "bond0"})

    assert "bond0" == exported(words)["NCCL_SOCKET_IFNAME"]
    assert "sh" not in words


@pytest.mark.parametrize(
    ("np", "expected"),
    [
        (33, "33 ranks asked for, there are 32 slots on 4 hosts"),
        (-1, "-1 ranks asked for"),
    ],
)
def test_ranks_beyond_the_slots_are_refused(np: Any, expected: Any) -> None:
    """Before mpirun, which would say it in twenty lines."""
    with pytest.raises(ConfigError) as error:
        plan_launch(HOSTS, {h: facts_of() for h in HOSTS}, np=np)

    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"mpirun": "/usr/bin/mpirun"},
            "the path of mpirun differs between the hosts: /opt/amazon/openmpi/bin/mpirun on 3 of 4,"
            " but /usr/bin/mpirun on 10.0.1.12",
        ),
        (
            {"mpirun_version": "5.0.3"},
            "Open MPI's version differs between the hosts: 4.1.7 on 3 of 4, but 5.0.3 on 10.0.1.12",
        ),
        ({"mpirun": None}, "no mpirun on 10.0.1.12"),
        ({"interface": None}, "no network device with the hostfile's address on 10.0.1.12"),
    ],
)
def test_the_odd_host_is_named(changes: Any, expected: Any) -> None:
    """Not "mpirun differs", but on which host."""
    facts = {h: facts_of(**changes) if h.rank == 2 else facts_of() for h in HOSTS}

    with pytest.raises(ClusterError) as error:
        plan_launch(HOSTS, facts)

    assert expected in str(error.value)


def test_an_unknown_profile_is_refused() -> None:
    """With those there are."""
    with pytest.raises(ConfigError, match="no launch profile 'ib': take one of tcp, ena, efa"):
        plan_launch(HOSTS, {h: facts_of() for h in HOSTS}, profile="ib")


def test_what_is_shown_is_what_is_run() -> None:
    """--dry-run's text, split by a shell, is the command's words, hostile values included."""
    launch = plan_launch(HOSTS, {h: facts_of() for h in HOSTS}, environment={"X": "it's $HOME; rm -rf /\n"})
    words = command_line(launch, ["python", "-c", "print('a b')"], hostfile="/e f/hosts", workdir="/w")

    assert words == shlex.split(shown(words).replace("\\\n", " "))


@pytest.mark.parametrize(
    "pair",
    [
        "X",
        "=1",
        "1X=2",
        "AWS_SECRET_ACCESS_KEY=abc",
        "DB_PASSWORD=x",
        "a b=c",
        "WANDB_API_KEY=x",
        "DB_PASSWD=x",
        "PRIVATE_KEY=x",
        "AUTH=x",
        "HTTP_AUTH=x",
        "PASSPHRASE=x",
        "MY_CREDENTIALS=x",
        "HF_TOKEN=x",
        "apikey=x",
        "DB_PASSWORD=1234",
        "GITHUB_TOKEN=1x",
        "MYSQL_PWD=x",
        "MY_SECRET=/wJalrXUtnFEMI",
        "API_KEY_OF_MINE=x",
        "DATABASE_URL=postgres://u:p@h/d",
        "http_proxy=http://me:geheim@proxy:3128",
        "OWN=ghp_" + "a1" * 18,
    ],
)
def test_bad_and_secret_variables_are_refused(pair: Any) -> None:
    """A value given to mpirun is in the process list of every host."""
    with pytest.raises(ConfigError):
        check_environment([pair])


@pytest.mark.parametrize(
    "pair",
    [
        *("TOKENIZERS_PARALLELISM=false", "MAX_TOKENS=4", "NUM_KEYS=3", "TOKENIZER=gpt2", "TRAIN_TOKENS=10B", "PAD_TOKEN=[PAD]"),
        *("HF_HUB_DISABLE_IMPLICIT_TOKEN=1", "ADD_BOS_TOKEN=True", "BOS_TOKEN=<s>", "MASK_TOKEN=-1", "SORT_KEY=1e-3", "AUTH="),
        *("HF_TOKEN_PATH=/home/me/.token", "DB_PASSWORD_FILE=/run/db", "GOOGLE_APPLICATION_CREDENTIALS=/efs/own-key.json"),
        *("INIT_METHOD=tcp://10.0.0.1:23", "URL=http://h/a:b@c", "PROXY=http://$ME:$IT@h"),
    ],
)  # fmt: skip
def test_what_is_only_called_like_a_secret_is_taken(pair: str) -> None:
    """A switch, a number, a tokenizer's mark, the place of a file; an address without a password."""
    name, _, value = pair.partition("=")
    assert {name: value} == check_environment([pair])


REFERENCE = [
    "plm_rsh_no_tree_spawn",
    "pml",
    "btl",
    "btl_tcp_if_exclude",
    "oob_tcp_if_include",
    "btl_vader_single_copy_mechanism",
    "NCCL_SOCKET_IFNAME",
    "NCCL_MIN_NRINGS",
    "NCCL_DEBUG",
    "NCCL_TREE_THRESHOLD",
    "HOROVOD_FUSION_THRESHOLD",
    "HOROVOD_CYCLE_TIME",
    "HOROVOD_HIERARCHICAL_ALLREDUCE",
    "HOROVOD_AUTOTUNE",
    "TF_CPP_MIN_LOG_LEVEL",
    "TF_GPU_ALLOCATOR",
    "TF_AUTOTUNE_THRESHOLD",
    "TF_DEVICE_MIN_SYS_MEMORY_IN_MB",
    "TF_ENABLE_AUTO_MIXED_PRECISION",
    "TF_CUDNN_USE_AUTOTUNE",
    "TF_ENABLE_NHWC",
    "TENSORPACK_FP16",
    "FI_PROVIDER",
    "FI_OFI_RXR_RX_COPY_UNEXP",
    "FI_OFI_RXR_RX_COPY_OOO",
    "FI_EFA_MR_CACHE_ENABLE",
    "FI_OFI_RXR_INLINE_MR_ENABLE",
    "LD_LIBRARY_PATH",
    "--map-by",
    "--bind-to",
    "--display-map",
    "--timestamp-output",
]


@pytest.mark.parametrize("name", REFERENCE)
def test_every_setting_of_the_references_is_set_or_explained(name: Any) -> None:
    """None was forgotten: it is in a profile, or listed with the reason why not."""
    settings = [s for p in PROFILES.values() for s in p.settings] + list(NOT_SET)

    assert name in {s.name for s in settings}
    assert all(s.reason for s in settings)
