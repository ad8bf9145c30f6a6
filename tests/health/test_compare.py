"""What is seen only across hosts, on answers made up here: the odd one is named, doubt is no fault."""

import json
import math
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.health import compare, fabric, questions, routes
from cluster.health.check import Answer
from cluster.health.net import reduce_line, reduce_rates
from cluster.health.onhost import trust
from cluster.health.quick_check import QUESTION_OF, compare_hosts
from cluster.health.ranks.run_ranks import RanksRun
from cluster.health.verdict import Severity
from cluster.hosts import Host
from cluster.inventory import ROOT, Cluster
from cluster.join.keys import HostKey, known_hosts
from tests.conftest import PATIENCE_S

HOSTS = [Host(rank=r, address=f"10.0.0.{r + 1}", slots=8) for r in range(5)]
MASTER, *_, LAST = HOSTS
RECORDED = Path(__file__).parent.parent / "recorded"


def exchange(offset_s: float, took_s: float) -> list[float]:
    """One question about the time that took so long, to a clock so far ahead."""
    return [1000.0, 1000.0 + took_s / 2 + offset_s, 1000.0 + took_s]


def clocks(*exchanges: list[float]) -> Any:
    """The problems of the last host, which said these."""
    said = {LAST.address: {"state": "whole", "error": "", "exchanges": list(exchanges)}}
    return compare.ssh_problems(json.dumps(said), {LAST.address: LAST}, MASTER).get(LAST, [])


@pytest.mark.parametrize(
    ("offset_s", "verdict"),
    [
        (0.0, None),
        (0.09, None),
        (-0.11, Severity.WATCH),
        (0.9, Severity.WATCH),
        (1.1, Severity.RESTART_JOB),
        (-40.0, Severity.RESTART_JOB),
    ],
)
def test_a_clock_warns_at_100_ms_and_fails_at_1_s(offset_s: Any, verdict: Any) -> None:
    """Either way round."""
    problems = clocks(exchange(offset_s, 0.001))

    assert [verdict] * bool(verdict) == [p.verdict for p in problems]
    assert all(p.unfit == (verdict is Severity.RESTART_JOB) for p in problems)


@pytest.mark.parametrize("odd", range(5))
def test_the_clock_that_differs_from_most_is_the_one_that_is_named(odd: int) -> None:
    """The master's too, although the others are measured by it."""
    clock = {host: 3600.0 * (host.rank == odd) for host in HOSTS}
    said = {
        h.address: {"state": "whole", "error": "", "exchanges": [exchange(clock[h] - clock[MASTER], 0.001)]}
        for h in HOSTS[1:]
    }
    found = compare.ssh_problems(json.dumps(said), {h.address: h for h in HOSTS}, MASTER)

    assert [HOSTS[odd]] == list(found)
    assert "+3600.00 s" in found[HOSTS[odd]][0].what


def test_a_clock_that_says_nothing_is_unreadable() -> None:
    """Not ok."""
    with pytest.raises(ValueError, match="no number"):
        clocks([1.0, math.nan, 1.1])


def test_the_odd_version_is_named_and_the_masters_decides_a_tie() -> None:
    """One line for one host, not a table."""
    texts = {h: json.dumps({"tensorflow": "2.18.1" if h is not LAST else "2.17.0", "horovod": "0.28.1"}) for h in HOSTS}
    found = compare.version_problems(texts, MASTER, "/opt/dlami-cluster")
    tie = compare.odd_ones("x", {MASTER: "a", LAST: "b"}, MASTER, do="", command="")

    assert {LAST: ["tensorflow is 2.17.0; 4 of 5 hosts have 2.18.1"]} == {
        h: [p.what for p in ps] for h, ps in found.items()
    }
    assert [LAST] == list(tie)


def test_load_is_judged_against_the_others() -> None:
    """All busy is a training; one busy alone is not, once it lasts."""
    training = dict.fromkeys(HOSTS, ("60.00 50.00 40.00 9/999 1", 32))
    odd = {**dict.fromkeys(HOSTS, ("0.50 0.50 0.40 1/999 1", 32)), LAST: ("64.00 48.0 9.0 1/99 1", 32)}
    burst = {**odd, LAST: ("120.00 9.0 0.4 1/99 1", 32)}

    assert {} == compare.load_problems(training)
    assert [LAST] == list(compare.load_problems(odd))
    assert {} == compare.load_problems(burst)
    assert {} == compare.load_problems({MASTER: ("90.0 1 1 1/1 1", 1)})


def well(host: Host) -> dict[str, Answer]:
    """What a host answers to the questions that are compared, where nothing is wrong."""
    files = {
        "/proc/sys/kernel/osrelease": "6.8",
        "/proc/self/mounts": "x / ext4 rw 0 0",
        "/proc/loadavg": "1 1 1 1/1 1",
        "/sys/devices/system/cpu/online": "0-3,8",
    }
    others = [o.address for o in HOSTS if o is not host]
    known = {o.address: [f"ssh-ed25519 AAAA{o.rank}"] for o in HOSTS}
    said = {
        "versions": {"horovod": "0.28.1"},
        "project": {"folder": "/opt/x", "code": True, "python": True},
        "basics": files,
        "addresses": [{"ifname": "eth0", "mtu": 9001, "addr_info": [{"local": host.address}]}],
        "trust": {"shows": [f"ssh-ed25519 AAAA{host.rank}"], "expects": known},
        "ssh": {a: {"state": "whole", "error": "", "exchanges": [exchange(0, 0.001)]} for a in others},
        "links": {a: {"state": "answers", "why": ""} for a in others},
        "next-ssh": {},
        "place:/efs": {},
    }
    answers = {name: Answer(status="ok", out=json.dumps(value)) for name, value in said.items()}
    return {**answers, "mpirun": Answer(status="ok", out="mpirun (Open MPI) 4.1.7\n")}


def found_with(**instead: Answer) -> dict[str, compare.Found]:
    """What is found where the last host answers this instead."""
    cluster = Cluster(name="x", hosts=tuple(HOSTS), folder=ROOT, shared="/efs", project="/opt/x")
    answers = {
        h: {**well(h), **({k.replace("_", "-"): a for k, a in instead.items()} if h is LAST else {})} for h in HOSTS
    }
    return {name: hosts for name, hosts in compare_hosts(cluster, answers, {}).items() if hosts}


NOBODY = Answer(status="ok", out="{}")  # it has tried no other host


@pytest.mark.parametrize("status", ["timeout", "failed", "damaged", "skipped"])
@pytest.mark.parametrize(("check", "question"), sorted(QUESTION_OF.items()))
def test_a_host_whose_answer_did_not_come_is_unknown_and_no_other_is_named(
    check: Any, question: Any, status: Any
) -> None:
    """No answer, or a part of one, is no other version, and not ok."""
    found = found_with(**{question.replace("-", "_"): Answer(status=status)})

    assert {LAST: [Severity.UNKNOWN]} == {h: [p.verdict for p in ps] for h, ps in found[check].items()}
    assert {LAST} == {h for hosts in found.values() for h in hosts}


ROOT_ROW = "/dev/nvme0n1p1 / ext4 rw,relatime 0 0\n"


def mounted_from(server: str, options: str = "rw") -> str:
    """/proc/self/mounts of a host that has the shared folder from there."""
    return f"{ROOT_ROW}{server}:/srv/shared /srv/shared nfs4 {options} 0 0\n"


def odd_mounts(mounts: dict[Host, str]) -> dict[Host, list[str]]:
    """What is said of each host's shared folder."""
    return {
        h: [p.what for p in ps] for h, ps in compare.shared_problems(mounts, "/srv/shared", next(iter(mounts))).items()
    }


@pytest.mark.parametrize("members", [1, 2, 4])
@pytest.mark.parametrize(
    ("server", "options"), [("10.0.0.1", "rw"), ("gpu0", "rw,vers=4.2,clientaddr=10.0.0.9,addr=10.0.0.1")]
)
def test_a_host_that_serves_the_shared_folder_has_it(members: int, server: str, options: str) -> None:
    """From a disk of its own; whoever mounts another's is not odd either, however few they are."""
    mounts = {MASTER: ROOT_ROW, **dict.fromkeys(HOSTS[1 : members + 1], mounted_from(server, options))}

    assert {} == odd_mounts(mounts)


def test_beside_a_host_that_serves_it_the_one_that_lacks_it_is_named() -> None:
    """Though as many have it mounted as have not."""
    mounts = {MASTER: ROOT_ROW, HOSTS[1]: ROOT_ROW, HOSTS[2]: mounted_from("10.0.0.1")}

    assert {HOSTS[1]: ["what is mounted on /srv/shared is ext4; 2 of 3 hosts have nfs4"]} == odd_mounts(mounts)


def test_a_host_that_serves_something_else_must_mount_it_too() -> None:
    """A home from the leader says nothing of the shared folder."""
    home = "10.0.0.1:/home /home nfs4 rw 0 0\n"
    mounts = {MASTER: ROOT_ROW, **dict.fromkeys(HOSTS[1:3], mounted_from("fs-1.efs.us-east-1.amazonaws.com") + home)}

    assert {MASTER: ["what is mounted on /srv/shared is ext4; 2 of 3 hosts have nfs4"]} == odd_mounts(mounts)


def ways(**broken: Any) -> Any:
    """What hosts say of their links: `h1_2="silent"` is rank 1's to rank 2; all others answer."""
    return {
        h: json.dumps(
            {
                o.address: {"state": broken.get(f"h{h.rank}_{o.rank}", "answers"), "why": "because"}
                for o in HOSTS
                if o is not h
            }
        )
        for h in HOSTS
    }


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        ({}, {}),
        ({"h1_3": "silent", "h3_1": "silent"}, {3: "10.0.0.2"}),
        ({"h1_3": "refused here", "h3_1": "silent"}, {1: "10.0.0.4"}),
        ({"h0_2": "silent"}, {2: "10.0.0.1"}),
        ({f"h2_{r}": "silent" for r in (0, 1, 3, 4)}, {2: "10.0.0.1, 10.0.0.2, 10.0.0.4 and 1 more"}),
        (
            {**{f"h{r}_1": "silent" for r in (0, 2, 3, 4)}, "h3_4": "failed"},
            {1: "10.0.0.1, 10.0.0.3, 10.0.0.4 and 1 more", 4: "10.0.0.4"},
        ),
    ],
)
def test_a_broken_pair_has_one_name_and_a_host_cut_off_takes_no_other_along(broken: Any, named: Any) -> None:
    """The host with more broken pairs; else the one that refuses by itself; else the later one, never the master."""
    found = routes.link_problems(ways(**broken))

    assert {HOSTS[r]: [f"no TCP between it and {others}: because"] for r, others in named.items()} == {
        h: [p.what for p in ps] for h, ps in found.items()
    }
    assert all(p.unfit for ps in found.values() for p in ps)


def test_ssh_from_node_to_node_is_named_once_by_its_reason() -> Any:
    """What others have found already is not said again."""

    def said(**states: Any) -> Any:
        return json.dumps(
            {HOSTS[int(r[1:])].address: {"state": s, "error": e, "exchanges": []} for r, (s, e) in states.items()}
        )

    denied = ("failed", "root@10.0.0.3: Permission denied (publickey).")
    texts = {
        HOSTS[1]: said(h2=denied, h3=("whole", ""), h4=("late", "")),
        HOSTS[2]: said(h1=("failed", "Host key verification failed.")),
    }
    found = routes.node_problems(texts, HOSTS)

    assert [HOSTS[1]] == list(found)
    assert [
        "it cannot ssh to 10.0.0.3: root: Permission denied (publickey).",
        "there was no time to ssh from it to 10.0.0.5",
    ] == [p.what for p in found[HOSTS[1]]]
    assert [Severity.WATCH, Severity.UNKNOWN] == [p.verdict for p in found[HOSTS[1]]]
    assert {} == routes.node_problems(texts, HOSTS, [HOSTS[1]])
    assert {} == routes.node_problems(texts, [HOSTS[1], HOSTS[3]])


@pytest.mark.parametrize(
    ("error", "command"),
    [
        (
            "root@10.0.0.3: Permission denied (publickey).",
            "inv run --hosts {ranks} -- 'ls -l .ssh /etc/ssh/ssh_config.d'",
        ),
        ("ssh: connect to host 10.0.0.3 port 22: No route to host", "inv health"),
        ("ssh: connect to host 10.0.0.3 port 22: Connection timed out", "inv health"),
    ],
)
def test_what_to_do_about_ssh_follows_from_its_complaint(error: Any, command: Any) -> None:
    """A key helps nobody whose network was away."""
    text = json.dumps({HOSTS[2].address: {"state": "failed", "error": error, "exchanges": []}})

    assert [command] == [p.command for p in routes.node_problems({HOSTS[1]: text}, HOSTS)[HOSTS[1]]]


def test_every_worker_tries_ssh_to_the_next_one() -> Any:
    """Nobody goes to itself or to the master, who is tried by nobody but goes to all."""

    def tries(num_hosts: Any) -> Any:
        cluster = Cluster(
            name="x",
            folder=ROOT,
            shared="/efs",
            project="/opt/x",
            hosts=tuple(Host(rank=r, address=f"10.0.1.{r}", slots=8) for r in range(num_hosts)),
        )
        asked = {
            h.rank: [a for chain in questions.quick_questions(cluster, h) for a in chain if a.name == "next-ssh"]
            for h in cluster.hosts
        }
        return {rank: a[0].arguments[0] for rank, a in asked.items() if a}

    assert {1: ["10.0.1.2"], 2: ["10.0.1.3"], 3: ["10.0.1.1"]} == tries(4)
    assert {1: []} == tries(2)
    assert {r: [f"10.0.1.{r % 63 + 1}"] for r in range(1, 64)} == tries(64)


@pytest.fixture
def known_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, list[str]]]:
    """What `trust` expects of addresses, by these lines of known_hosts and these further settings of this host's ssh."""
    file, config, ssh = tmp_path / "known_hosts", tmp_path / "config", tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def found(lines: str, *addresses: str, settings: str = "", hashed: bool = False) -> dict[str, list[str]]:
        file.write_text(lines)
        config.write_text(f"{settings}\nHost *\nUserKnownHostsFile {file}\nGlobalKnownHostsFile /dev/null\n")
        if hashed:
            subprocess.run(
                ["ssh-keygen", "-q", "-H", "-f", file], check=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL
            )
            assert "|1|" in file.read_text()
        return trust.trust(list(addresses))["expects"]

    return found


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A host key, as a line of known_hosts ends with it."""
    file = tmp_path_factory.mktemp("key") / "key"
    subprocess.run(["ssh-keygen", "-q", "-N", "", "-t", "ed25519", "-f", file], check=True, timeout=PATIENCE_S)
    return " ".join(file.with_suffix(".pub").read_text().split()[:2])


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize("port", [22, 2222])
def test_a_known_host_is_known_by_its_port_too(known_by: Any, key: str, port: int, hashed: bool) -> None:
    """As `inv hosts.join` writes it; ssh hashes names on Debian. Under another port it is another host."""
    lines = known_hosts({"10.0.0.2": [HostKey(*key.split())]}, port)
    expects = known_by(lines, "10.0.0.2", "10.0.0.3", settings=f"Port {port}", hashed=hashed)

    assert {"10.0.0.2": [key], "10.0.0.3": []} == expects
    assert {"10.0.0.2": []} == known_by(lines, "10.0.0.2", settings="Port 2022")


def test_a_known_host_is_found_as_ssh_finds_it(known_by: Any, key: str) -> None:
    """By patterns, by what the settings call it, by a port of its own, and by an authority."""
    lines = f"gpu?.local,!gpu9.local {key}\nalias {key}\n[10.0.0.4]:2222 {key}\n@cert-authority *.ca {key}\n"
    settings = "Host 10.0.0.3\nHostKeyAlias alias\nHost 10.0.0.4\nPort 2222\nHost one\nHostName gpu1.local"
    names = ("gpu1.local", "gpu9.local", "10.0.0.3", "10.0.0.4", "one", "h.ca", "h.other")

    assert {
        "gpu1.local": [key],
        "gpu9.local": [],
        "10.0.0.3": [key],
        "10.0.0.4": [key],
        "one": [key],
        "h.ca": [f"@cert-authority {key}"],
        "h.other": [],
    } == known_by(lines, *names, settings=settings)


def test_a_key_that_is_another_one_is_not_known() -> None:
    """Only who expects it is named."""
    texts = {
        h: json.dumps(
            {
                "shows": [f"ssh-ed25519 AAAA{h.rank}"],
                "expects": {
                    o.address: [f"ssh-ed25519 AAAA{o.rank}"] for o in HOSTS if h is not LAST or o is not MASTER
                },
            }
        )
        for h in HOSTS
    }
    found = compare.trust_problems(texts)
    assert {LAST: ["it does not know the SSH host key of 10.0.0.1"]} == {
        h: [p.what for p in ps] for h, ps in found.items()
    }


def trusts(unknown: dict[Host, set[Host]]) -> Any:
    """What all say of host keys: each knows all but those that are unknown to it."""
    return {
        h: json.dumps(
            {
                "shows": [f"ssh-ed25519 AAAA{h.rank}"],
                "expects": {o.address: [] if o in unknown.get(h, ()) else [f"ssh-ed25519 AAAA{o.rank}"] for o in HOSTS},
            }
        )
        for h in HOSTS
    }


def test_a_master_that_trusts_nobody_is_unfit() -> None:
    """mpirun starts every rank from there; a worker that trusts nobody is watched."""
    (master,) = compare.trust_problems(trusts({MASTER: set(HOSTS)}))[MASTER]
    (worker,) = compare.trust_problems(trusts({LAST: set(HOSTS)}))[LAST]

    assert (True, Severity.RESTART_JOB) == (master.unfit, master.verdict)
    assert "it does not know the SSH host key of 10.0.0.2, 10.0.0.3, 10.0.0.4 and 1 more" == master.what
    assert f"scp {HOSTS[1].address}:.ssh/known_hosts" in master.command
    assert (False, Severity.WATCH) == (worker.unfit, worker.verdict)
    assert {} == compare.trust_problems(trusts({}))


def test_a_look_that_has_been_there_by_ssh_does_not_say_that_it_cannot_go() -> None:
    """Its known_hosts is asked where no SSH has been tried."""
    none = Answer(status="ok", out=json.dumps({"shows": [f"ssh-ed25519 AAAA{LAST.rank}"], "expects": {}}))

    assert {} == found_with(trust=none)
    assert {"trust": [LAST]} == {n: list(hosts) for n, hosts in found_with(trust=none, ssh=NOBODY).items()}


def test_lanes_are_compared_between_gpus_of_a_kind_in_a_kind_of_instance() -> None:
    """A report that cannot be read keeps nobody from being compared."""
    log = (RECORDED / "gpu-pcie/g4dn.xlarge-470.103.01-wired-for-8.txt").read_text().partition("<?xml")
    eight = Answer(status="ok", out="".join(log[1:]))
    sixteen = Answer(status="ok", out=eight.out.replace(">8x<", ">16x<"))
    smi = dict(zip(HOSTS, (sixteen, sixteen, eight, eight, Answer(status="ok", out="<cut")), strict=True))
    types = {h: Answer(status="ok", out=json.dumps({"instance-type": f"g{h is HOSTS[3]}"})) for h in HOSTS}
    cluster = Cluster(name="x", hosts=tuple(HOSTS), folder=ROOT, shared="/efs", project="/opt/x")
    answers = {h: {**well(h), "smi": smi[h], "instance": types[h]} for h in HOSTS}
    found = compare_hosts(cluster, answers, {})["gpu-lanes"]

    assert {HOSTS[2]: ["8 PCIe lanes for its GPUs (Tesla T4 in gFalse); 2 of 3 hosts have 16"]} == {
        h: [p.what for p in ps] for h, ps in found.items()
    }


def test_a_real_table_of_one_rank_is_read_whole() -> None:
    """Every size of it; one rank sends nothing, and a baseline of nothing is compared with by nobody."""
    table = (RECORDED / "nccl-tests/vm-h100-580.159.04-one-rank.table").read_text()
    rates = reduce_rates(RanksRun(rows=(), text=table, cause=None, launch=None, facts=None))
    sizes = ["4 KiB", "32 KiB", "256 KiB", "2 MiB", "16 MiB", "128 MiB"]

    assert dict.fromkeys(sizes, 0.0) == rates
    assert "4 KiB 0.0 Mbit/s, 32 KiB 0.0 Mbit/s" in reduce_line(rates, rates, 1)
    assert "all-reduce, bus bandwidth: 1 MiB 16.00 Gbit/s (50%) (2 ranks)" == reduce_line(
        {"1 MiB": 2e9, "pairs": 1e9}, {"1 MiB": 4e9, "pairs": 1e9}, 2
    )


def test_a_host_without_efa_is_unfit_only_beside_others_that_have_it() -> None:
    """Of its own type: a training over both would use TCP everywhere. Where none has it, TCP is what there is."""
    card = "provider: efa\n    domain: rdmap10s27-rdm\n-- 2 lines\n"
    none = "fi_getinfo: -61 (No data available)\n-- 1 lines\n"
    a, b, c = (Host(rank=n, address=f"10.0.0.{n + 1}", slots=8) for n in range(3))
    same = dict.fromkeys((a, b, c), "g5.8xlarge")
    found = fabric.card_problems({a: card, b: none, c: card}, same)

    assert [b] == list(found)
    assert (Severity.REPLACE, True) == (found[b][0].verdict, found[b][0].unfit)
    assert "2 other hosts of its type g5.8xlarge have one" in found[b][0].what
    assert {} == fabric.card_problems({a: none, b: none}, same)
    assert {} == fabric.card_problems({a: card, b: none}, {a: "p4d.24xlarge", b: "g5.8xlarge"})
    assert {} == fabric.card_problems({a: card, b: none}, {})
