"""Programs of every kind through a whole life: logged, stopped, resumed, killed, crashed, hung, healed, swept."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.ssh.fanout import Executor
from cluster.ssh.tagged_processes import list_script
from lab.record import Lab
from tests.cluster.others_programs import ACCELERATE_LAUNCH, example
from tests.cluster.own_programs import Own, begun, console, over, processes, state
from tests.conftest import wait_for

# The same thing three times, as anybody would write it: steps together, a checkpoint after each, USR1 means leave.
C_STEPS = r"""
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static volatile sig_atomic_t asked;
static void hear(int number) { asked = 1; }
int main(int argc, char **argv) {
    int rank, leave = 0;
    long done = 0;
    char last[4096], fresh[4096];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    signal(SIGUSR1, hear);
    snprintf(last, sizeof last, "%s/last", argv[1]);
    snprintf(fresh, sizeof fresh, "%s/last.tmp", argv[1]);
    FILE *file = fopen(last, "r");
    if (file && fscanf(file, "%ld", &done) == 1) fclose(file);
    printf("goes on after %ld\n", done);
    while (!leave) {
        int own = asked;
        usleep(50000);
        MPI_Allreduce(&own, &leave, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
        done++;
        if (rank == 0) {
            file = fopen(fresh, "w");
            fprintf(file, "%ld\n", done);
            fclose(file);
            rename(fresh, last);
        }
        printf("step %ld\n", done);
        fflush(stdout);
    }
    printf("saved and left\n");
    MPI_Finalize();
    return 0;
}
"""
MPI4PY_STEPS = """\
import pathlib, signal, sys, time
from mpi4py import MPI

asked, world, last = [], MPI.COMM_WORLD, pathlib.Path(sys.argv[1], "last")
signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
done = int(last.read_text()) if last.exists() else 0
print("goes on after", done)
leave = False
while not leave:
    time.sleep(0.05)
    leave = world.allreduce(len(asked), op=MPI.MAX)
    done += 1
    if world.rank == 0:
        last.with_suffix(".tmp").write_text(str(done))
        last.with_suffix(".tmp").rename(last)
    print("step", done)
print("saved and left")
"""
SHELL_STEPS = """\
last=$1/last done=0 leave=
trap 'leave=1' USR1
[ ! -e "$last" ] || done=$(cat "$last")
echo "goes on after $done"
until [ -n "$leave" ]; do
    sleep 0.05
    done=$((done + 1))
    if [ "$RANK" = 0 ]; then echo $done >"$last.tmp"; mv "$last.tmp" "$last"; fi
    echo "step $done"
done
echo "saved and left"
"""
DDP_ENDLESS = """\
import itertools, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
for step in itertools.count(1):
    model(torch.ones(3, 4)).sum().backward()
    time.sleep(0.1)
    print("step", step, "of", dist.get_rank(), flush=True)
"""
FOLDER = '"$DLAMI_JOB_DIR/checkpoints"'


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A program, and how it is started."""

    name: str
    words: Sequence[object]
    hosts: str
    options: Sequence[object] = ()
    begins: str = "goes on after"  # what a rank says when it has begun
    ranks: int = 1  # how many have to, before all have begun: one, where it waits for the others before that
    speaker: int = 1  # which does
    saves: bool = True
    waits: bool = True  # a rank for the others
    hang_s: int = 10
    limit_s: float = 400.0  # until it has begun, on a machine that others keep busy


def on(reach: Executor, host: Host, job: str, number: str, of: str) -> None:
    """A signal for what runs of the program there: for one rank's first process, or for all that there is of it."""
    ours = (
        f"$({{ {list_script('DLAMI_JOB', job)}; }} | awk '$1 ~ /^[0-9]+$/ {{print $1}}')"  # commands have several lines
    )
    pick = {
        "a rank": 'if [ "$c" = dlami-rank ]; then for q in $(pgrep -P $p); do grep -qx dlami-rank /proc/$q/comm || echo $q; done; fi',
        "all": "case $c in dlami-rank | orted | mpirun | ssh | sshd) ;; *) echo $p ;; esac",
    }[of]
    find = f"for p in {ours}; do c=$(cat /proc/$p/comm 2>/dev/null) || continue; {pick}; done"
    some = f"{find} | tail -n 1" if of == "a rank" else find
    reach.run([host], f"kill -{number} $({some})").check()


def life(own: Own, lab: Lab, cluster: Cluster, reach: Executor, kind: Kind) -> None:
    """All that may befall a job, and what is said of it; what ends it comes from outside, the program is what it is."""
    last = cluster.hosts[int(kind.hosts[-1])]
    job = begun(
        own, "--hosts", kind.hosts, "--name", kind.name, "--hang-after", kind.hang_s, *kind.options, "--", *kind.words
    )
    folder = lab.shared / "jobs" / job

    def runs(attempt: int) -> None:
        wait_for(
            lambda: console(lab, job, attempt).count(kind.begins) >= kind.ranks or state(lab, job)["state"] == "failed",
            kind.limit_s,
            f"{kind.name}: attempt {attempt} begins",
        )
        assert console(lab, job, attempt).count(kind.begins) >= kind.ranks, (
            f"{state(lab, job)}\n{console(lab, job, attempt)}"
        )

    def resumed() -> None:
        before = state(lab, job)["attempt"]

        def begins() -> bool:  # a machine that others keep busy may not answer in time
            done = own("jobs.resume", job, "--detach", "--unchecked", "--no-heal")
            return done.returncode == 0 or state(lab, job)["attempt"] > before

        wait_for(begins, kind.limit_s, f"{kind.name}: attempt {before} is followed")

    runs(1)
    logs = own("jobs.logs", job, "--rank", kind.speaker)
    assert kind.begins in logs.stdout + logs.stderr, (kind.name, logs)
    on(reach, last, job, "KILL", "a rank")
    runs(2)
    record = json.loads((folder / "attempts.json").read_text())["attempts"][0]
    assert ("rank-signal", last.address) == (record["what"], record["host"]), (kind.name, record)

    stopped = own("jobs.stop", job)
    assert f"{job}: stopped; no process of it is left on any host\n" == stopped.stdout, (kind.name, stopped)
    saved = (folder / "checkpoints/last").read_text().strip() if kind.saves else ""
    resumed()
    runs(3)
    if kind.saves:
        assert "saved and left" in console(lab, job, 2), kind.name
        assert f"goes on after {saved}\n" in console(lab, job, 3), (kind.name, saved, console(lab, job, 3))

    for host in [last] if kind.waits else cluster.hosts[int(kind.hosts[0]) : last.rank + 1]:
        on(reach, host, job, "STOP", "all")
    status = over(lab, job, within_s=180 + kind.hang_s)
    assert ("failed", True) == (status["state"], "no progress for" in status["cause"]), (kind.name, status)
    assert (folder / "logs/attempt-3/stacks.txt").read_text(), kind.name
    resumed()
    runs(4)
    reach.run([cluster.master], f"kill -9 {state(lab, job)['supervisor']['pid']}").check()
    own("kill", "--yes")
    assert [] == processes(reach, cluster, job), kind.name


def test_c_mpi4py_and_a_shell_s_program_live_as_jobs(
    own: Own,
    mpi4py: str,
    lab: Lab,
    cluster: Cluster,
    reach: Executor,
) -> None:
    """Side by side: a C program over two hosts, mpi4py and a shell's loop on one each."""
    folder = lab.shared / "own"
    (folder / "steps.c").write_text(C_STEPS)
    (folder / "mpi4py_steps.py").write_text(MPI4PY_STEPS)
    (folder / "steps.sh").write_text(SHELL_STEPS)
    reach.run([cluster.master], "mpicc -o /shared/own/c-steps /shared/own/steps.c").check()
    kinds = [
        Kind(name="c", words=[f"/shared/own/c-steps {FOLDER}"], hosts="0-1", options=("--np", 3)),
        Kind(
            name="mpi4py", words=[f"python /shared/own/mpi4py_steps.py {FOLDER}"], hosts="2",
            options=("--env", f"PYTHONPATH={mpi4py}/lib"),
        ),
        Kind(name="shell", words=[f"sh /shared/own/steps.sh {FOLDER}"], hosts="3", ranks=2),
    ]  # fmt: skip
    with ThreadPoolExecutor(len(kinds)) as pool:
        for _ in pool.map(lambda kind: life(own, lab, cluster, reach, kind), kinds):
            pass


FEW = ["--batch-size", 1, "--num-warmup-batches", 1, "--num-batches-per-iter", 1, "--num-iters", 100000]
GLOO = ["--dummy", "--dist-backend", "gloo", "--dist-url", "env://", "-a", "squeezenet1_1", "-b", 2, "-j", 0, "-p", 1]


@pytest.mark.long
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("name", ["horovod", "pytorch", "torchrun", "accelerate"])
def test_heavy_ones_live_as_jobs_unchanged(
    own: Own,
    request: pytest.FixtureRequest,
    name: str,
    lab: Lab,
    cluster: Cluster,
    reach: Executor,
) -> None:
    """Horovod's example; PyTorch's own of a training on ImageNet, whose ranks meet through gloo, and which does without
    DistributedDataParallel where there is no GPU; a script with that below torchrun, and below Accelerate's launcher.
    They save nothing that they look for and listen to nothing, so each attempt begins at its beginning."""
    (lab.shared / "own/endless.py").write_text(DDP_ENDLESS)
    venv = [] if name == "horovod" else ["--venv", request.getfixturevalue("torch_python").parents[1]]
    words: list[object]
    options: list[object] = ["--per", "node"]
    begins = "step 1"
    if name == "horovod":
        words, options = (
            ["python", example(lab, "horovod-synthetic.py"), "--no-cuda", "--model", "MobileNet", *FEW],
            ["--np", 3],
        )
        begins = "Iter #1"
    elif name == "pytorch":
        words, options = ["python", example(lab, "pytorch-imagenet.py"), *GLOO], ["--np", 3]
        begins = "Epoch: [0]["
    elif name == "torchrun":
        words = ["torchrun", "-r", "1", "-t", "1", "/shared/own/endless.py"]
    else:
        words = [f"{ACCELERATE_LAUNCH} /shared/own/endless.py"]
        options += ["--env", f"PYTHONPATH={request.getfixturevalue('accelerate')}"]
    life(
        own, lab, cluster, reach,
        Kind(
            name=name, words=words, hosts="0-1", options=[*options, *venv], begins=begins, saves=False,
            speaker=0 if name == "horovod" else 1,  # its first alone
            waits=name != "pytorch", hang_s=300 if name == "horovod" else 120, limit_s=900,
        ),
    )  # fmt: skip
