"""A master that does not train, `slots=0` in the hostfile: mpirun and supervisor are there, ranks and data are not."""

import dataclasses
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from cluster.errors import ClusterError, ConfigError
from cluster.health.before_training import as_in_hostfile, fit_hosts
from cluster.health.check import About
from cluster.health.compare import version_problems
from cluster.health.gpu import count_problems
from cluster.hosts import Host, hostfile, parse_hostfile, table, that_train
from cluster.hostset import select
from cluster.inventory import ROOT, Cluster, load_cluster
from cluster.jobs.plan import HostsUnfit, planned_on_master
from cluster.jobs.record import JobPaths
from cluster.launch.mpirun import hosts_for, plan_launch, ranks_on
from cluster.ssh.fanout import Executor
from dlami.tasks.running import seats_for
from lab.record import Lab
from tests.cluster.flat_jobs import changed
from tests.cluster.jobs_here import HERE, a_job
from tests.cluster.mpirun_words import facts_of
from tests.conftest import Inv, operator_of

HOSTS = parse_hostfile("m slots=0\na slots=8\nb slots=8\n# spare c slots=8\n", "hosts")
MASTER = HOSTS[0]
needs_mpirun = pytest.mark.skipif(not shutil.which("mpirun"), reason="needs Open MPI")
GPUS_OF_P4D = "".join(
    f"{line}\n"
    for line in (ROOT / "tests/recorded/gpu-count/p4d.24xlarge-535.54.03-eight.txt").read_text().splitlines()
    if not line.startswith("#")
)


def test_the_first_line_alone_may_have_no_slots() -> None:
    """It reads and writes as any other; the table says of it what it is, and nobody counts it among those that train."""
    assert ("m", 0, 0, False) == (MASTER.address, MASTER.rank, MASTER.slots, MASTER.trains)
    assert "m slots=0\na slots=8\nb slots=8\n# spare c slots=8\n" == hostfile(HOSTS)
    assert "master, does not train" in table(HOSTS).splitlines()[1]
    assert "2 hosts, 16 slots, and 1 spare, and a master that does not train" == table(HOSTS).splitlines()[-1]
    assert ["a", "b"] == [h.address for h in that_train(HOSTS)]
    assert 1 == len(parse_hostfile("m slots=0\n", "hosts"))  # while it has no workers


@pytest.mark.parametrize("text", ["a slots=1\nb slots=0\n", "a slots=1\n# spare b slots=0\n", "# spare m slots=0\nb slots=1\n"])  # fmt: skip
def test_no_other_host_may_have_none(text: str) -> None:
    """mpirun would start a daemon there, and no rank."""
    with pytest.raises(ConfigError, match=r"only the master, on the first line, may have slots=0"):
        parse_hostfile(text, "hosts")


@pytest.mark.parametrize(
    ("expression", "all_tasks", "for_ranks", "trainings"),
    [
        (None, "mabc", "abc", "ab"),
        ("@all", "mabc", "abc", "ab"),
        ("!1", "mbc", "bc", "b"),
        ("@workers", "ab", "ab", "ab"),
        ("0,1", "ma", "ma", "m does not train"),
        ("@master", "m", "m", "m does not train"),
        ("0-3", "mabc", "mabc", "m does not train"),
    ],
)
def test_every_task_reaches_it_and_no_training_does(
    expression: str | None, all_tasks: str, for_ranks: str, trainings: str
) -> None:
    """Data comes to it, and speed is measured there, only where it is named; a training that names it is refused."""

    def named(**how: bool) -> str:
        return "".join(h.address for h in select(HOSTS, expression, **how))

    assert all_tasks == named()
    assert for_ranks == named(for_ranks=True)
    if len(trainings) > 3:
        with pytest.raises(ConfigError, match=re.escape(trainings)):
            named(to_train=True)
    else:
        assert trainings == named(to_train=True)


def test_one_start_of_a_program_is_on_the_first_host_that_trains() -> None:
    """Not on the master, which has no GPU for it, unless it is named: a conversion needs none."""
    cluster = Cluster(name="c", hosts=HOSTS, folder=Path("/c"), shared="/efs", project="/opt/dlami-cluster")

    assert ["a"] == [h.address for h in seats_for(cluster, "once", "")]
    assert ["a"] == [h.address for h in seats_for(cluster, "once", "@all")]
    for named in ("0", "@master", "0,1"):
        assert [("m", 1)] == [(h.address, h.slots) for h in seats_for(cluster, "once", named)]
    with pytest.raises(ConfigError, match="m does not train"):
        seats_for(cluster, "node", "0")
    assert ["m"] == [h.address for h in seats_for(dataclasses.replace(cluster, hosts=(dataclasses.replace(MASTER, slots=8), *HOSTS[1:])), "once", "")]  # fmt: skip


def test_ranks_are_never_there_and_the_first_of_them_is_where_they_meet() -> None:
    """mpirun's hostfile leaves it out; its Open MPI has to be theirs all the same."""
    facts = {h: facts_of(gpus=0 if h == MASTER else 8, free_port=23456) for h in HOSTS[:3]}
    launch = plan_launch(HOSTS[:3], facts, master=MASTER)

    assert {"a": 8, "b": 8} == {h.address: n for h, n in ranks_on(HOSTS[:3], 16).items()}
    assert (("a", "b"), 16, ("a", 23456)) == (tuple(h.address for h in launch.hosts), launch.np, launch.rendezvous)
    assert "ena" == launch.profile.name
    with pytest.raises(ClusterError, match="Open MPI's version differs"):
        plan_launch(HOSTS[:3], {**facts, MASTER: facts_of(mpirun_version="5.0.8")}, master=MASTER)
    with pytest.raises(ConfigError, match="no mpirun on m"):
        plan_launch(HOSTS[:3], {**facts, MASTER: facts_of(mpirun=None)}, master=MASTER)
    with pytest.raises(ConfigError, match="no host has a slot"):
        hosts_for([MASTER], None)


@needs_mpirun
def test_a_master_that_does_not_reach_itself_keeps_no_attempt_from_its_hosts(tmp_path: Path) -> None:
    """It runs this: only what its hosts say is asked for. A folder that they do not have keeps it, unless none is shared."""
    job, paths = a_job("", "planned", starter="nowhere.invalid", np=2), JobPaths(tmp_path / "jobs" / "planned")
    lacks = JobPaths(tmp_path / "gone" / "jobs" / "planned")
    planned = planned_on_master(job, paths, (dataclasses.replace(HERE, slots=2),), 2, 3)

    assert (3, 2, ("localhost",)) == (planned.attempt, planned.np, tuple(h.address for h in planned.hosts))
    with pytest.raises(HostsUnfit) as unfit:
        planned_on_master(job, lacks, (HERE,), 1, 3)
    assert ["localhost"] == list(unfit.value.why)
    assert f"localhost: {tmp_path / 'gone'} " in str(unfit.value)
    assert 1 == planned_on_master(changed(job, is_shared=False), lacks, (HERE,), 1, 3).np


def test_it_is_not_unfit_for_what_only_ranks_need() -> None:
    """Other packages, no GPUs or GPUs that nobody trains on; its copy of our own code must be theirs."""
    about = About(host=MASTER, shared="/efs")
    texts = {h: json.dumps({"our own code": "1", "tensorflow": "2", "CUDA": "12"}) for h in HOSTS[1:3]}
    texts |= {MASTER: json.dumps({"our own code": "1"})}

    assert [] == count_problems(GPUS_OF_P4D, about)
    assert ["8 GPUs, but slots=4 in the hostfile"] == [
        p.what
        for p in count_problems(GPUS_OF_P4D, dataclasses.replace(about, host=dataclasses.replace(MASTER, slots=4)))
    ]
    assert {} == version_problems(texts, MASTER, "/p")
    odd = version_problems({**texts, MASTER: json.dumps({"our own code": "2"})}, MASTER, "/p")
    assert ["our own code is 2; 2 of 3 hosts have 1"] == [p.what for p in odd[MASTER]]


def test_hosts_of_a_program_are_judged_with_all_their_slots() -> None:
    """One start on a host of eight GPUs is no mistake in the hostfile, before an attempt and between two."""
    cluster = Cluster(name="c", hosts=HOSTS, folder=Path("/c"), shared="/efs", project="/opt/dlami-cluster")
    per_node, on_master = seats_for(cluster, "node", "1,2"), seats_for(cluster, "once", "0")

    assert [1, 1] == [h.slots for h in per_node]
    assert HOSTS[1:3] == as_in_hostfile(cluster, per_node)
    assert (MASTER,) == as_in_hostfile(cluster, on_master)
    job = a_job("", "x", hosts=per_node, slots={h.address: h.slots for h in HOSTS})
    successor = Host(rank=2, address="d", slots=1)
    assert [8, 8, 0, 8] == [job.slots_of(h) for h in (*per_node, *on_master, successor)]


@pytest.fixture
def idle_folder(lab: Lab, tmp_path: Path) -> Path:
    """A folder that is the lab's cluster, its master one that does not train."""
    there = load_cluster(f"lab:{lab.name}")
    hosts = (dataclasses.replace(there.hosts[0], slots=0), *there.hosts[1:])
    (tmp_path / "hosts").write_text(hostfile(hosts))
    (tmp_path / "cluster.toml").write_text((there.folder / "cluster.toml").read_text())
    return tmp_path


@pytest.fixture
def idle_inv(lab: Lab, idle_folder: Path) -> Inv:
    """The command line on it."""
    return operator_of(lab, idle_folder / "cache", str(idle_folder))


SAYS = "echo r=$RANK:$WORLD_SIZE on $(hostname) to $MASTER_ADDR"


def test_a_job_of_such_a_cluster(lab: Lab, idle_folder: Path, idle_inv: Inv) -> None:
    """Started by a real mpirun on the master: six ranks on the three others, who meet on the first of these; the
    supervisor is on the master, which no job holds."""
    done = idle_inv("train.run", "--name", "idle", "--", SAYS)
    cluster = load_cluster(str(idle_folder))
    said = sorted(re.findall(r"r=(\d):6 on (\S+) to (\S+)", done.stdout))

    assert 0 == done.returncode, done.stdout + done.stderr
    assert [(str(r), lab.hosts[1 + r // 2].name, lab.hosts[1].address) for r in range(6)] == said
    shown = json.loads(idle_inv("jobs.show", "idle", "--json").stdout)
    assert [h.address for h in cluster.hosts[1:]] == [h["address"] for h in shown["hosts"]]
    assert cluster.master not in fit_hosts(cluster, select(cluster.hosts, None, to_train=True))


def test_a_program_runs_once_on_such_a_master(lab: Lab, idle_inv: Inv) -> None:
    """Where it is named; it is looked at as a host that trains on none of its GPUs, and holds the job while that runs."""
    done = idle_inv("train.run", "--per", "once", "--hosts", "@master", "--name", "alone", "--", SAYS)

    assert 0 == done.returncode, done.stdout + done.stderr
    assert f"r=0:1 on {lab.hosts[0].name} to {lab.hosts[0].address}" in done.stdout
    shown = json.loads(idle_inv("jobs.show", "alone", "--json").stdout)
    assert [(lab.hosts[0].address, 1)] == [(h["address"], h["slots"]) for h in shown["hosts"]]


ON_MASTER = """
import json, sys
from pathlib import Path
from cluster.jobs.supervisor.admission import next_hosts
from cluster.jobs.record import Job
from cluster.typed import from_json
job = from_json(Job, json.loads(sys.argv[1]))
found = next_hosts(Path("/shared"), job, seats=job.hosts, spares=(), suspects=[h.address for h in job.hosts], np=1, min_np=1)
print(json.dumps({h.address: u.why for h in job.hosts if (u := found.missing.get(h.address))}))
"""


def test_a_host_of_eight_gpus_is_fit_for_one_start(idle_folder: Path) -> None:
    """Before an attempt and between two: its hostfile counts, not how many slots of it the program takes."""
    text = (idle_folder / "hosts").read_text().splitlines()
    text[1] = text[1].partition(" slots=")[0] + " slots=8"
    (idle_folder / "hosts").write_text("".join(f"{line}\n" for line in text))
    cluster = load_cluster(str(idle_folder))
    (seat,) = seats_for(cluster, "node", "1")
    job = a_job("", "x", hosts=(seat,), per="node", program=True, slots={h.address: h.slots for h in cluster.hosts})
    words = shlex.join([cluster.python, "-c", ON_MASTER, json.dumps(dataclasses.asdict(job))])
    smi = "/usr/local/bin/nvidia-smi"
    with Executor(cluster) as reach:
        told = f"cat >{smi}.xml && printf '#!/bin/sh\\nexec cat {smi}.xml\\n' >{smi} && chmod 755 {smi}"
        reach.run([cluster.hosts[1]], told, stdin=GPUS_OF_P4D.encode()).check()
        try:
            fit = fit_hosts(cluster, (seat,))
            between = reach.run([cluster.master], f"cd {cluster.project} && {words}").check()[cluster.master]
        finally:
            reach.run([cluster.hosts[1]], f"rm {smi} {smi}.xml")

    assert (seat,) == fit
    assert {} == json.loads(between.text.splitlines()[-1])


def test_what_is_copied_there_is_for_the_others(idle_inv: Inv, lab: Lab, tmp_path: Path) -> None:
    """It is where a copy comes from; it gets one of its own where it is named."""
    (tmp_path / "data").write_text("1\n")
    words = ["copy", tmp_path / "data", "/var/tmp/idle-data"]
    copied = [json.loads(line)["host"] for line in idle_inv(*words, "--json").stdout.splitlines()]
    refused: subprocess.CompletedProcess[str] = idle_inv("train.run", "--hosts", "0-3", "--", SAYS)

    assert [h.address for h in lab.hosts[1:]] == copied
    assert (2, True) == (refused.returncode, "does not train, its slots are 0 in the hostfile" in refused.stderr)
