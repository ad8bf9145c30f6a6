"""Every task by its name, and the two tasks that are about the project itself."""

import sys

from invoke import Collection, Context

from cfn import commandline as stack
from cluster.commandline import data, files, hosts, jobs, lab, training
from cluster.commandline.command import command
from cluster.errors import ConfigError


@command(help={"name": "a file of benchmarks/ without .py", "report": "only show all committed results"})
def bench(c: Context, name: str = "", report: bool = False) -> None:
    """Measure one of the figures the README quotes and keep the result: inv bench --name fanout."""
    from cluster.inventory import ROOT

    if not (ROOT / "benchmarks/report.py").exists():
        raise ConfigError("the benchmarks are not part of an installed dlami-cluster: run this in a checkout of it")
    from benchmarks import report as results

    if not report:
        if not (results.RESULTS.parent / f"{name}.py").exists() or name in ("", "report"):
            raise ConfigError(f"there is no benchmark {name!r}: benchmarks/ has the files to choose from")
        c.run(f"{sys.executable} benchmarks/{name}.py", pty=False, env={"PYTHONPATH": str(results.RESULTS.parents[1])})
        results.draw(name)
        if name in results.REACHING:
            results.draw_reaching()
    print(results.table(results.names() if report else [name]))


@command
def docs(c: Context) -> None:
    """Write docs/tasks.md from the tasks, and the map in docs/architecture.md from the modules themselves."""
    from cluster.files import write_atomically
    from cluster.inventory import ROOT
    from cluster.taskpage import page
    from dlami.modulemap import with_map

    if not (ROOT / "docs").is_dir():
        raise ConfigError("the docs are not part of an installed dlami-cluster: run this in a checkout of it")
    write_atomically(ROOT / "docs/tasks.md", page(ns))
    plan = ROOT / "docs/architecture.md"
    write_atomically(plan, with_map(plan.read_text(), ROOT))


# fmt: off
TOP_LEVEL = (
    hosts.run_command, hosts.login, hosts.disconnect, hosts.kill, hosts.reboot, hosts.health,
    files.copy_files, files.stage, stack.ssh_master, docs, bench,
)
GROUPS = {
    "hosts": (hosts.hosts_list, stack.hosts_write),
    "data": (
        data.data_status, data.data_sample, data.data_imagenet, data.data_verify, data.data_coco, data.data_bundle,
    ),
    "train": (
        training.train_resnet50, training.train_maskrcnn, training.train_benchmark, training.train_plot,
        training.train_scaling,
    ),
    "maskrcnn": (training.maskrcnn_predict, training.maskrcnn_evaluate, training.maskrcnn_export),
    "jobs": (jobs.jobs_list, jobs.jobs_show, jobs.jobs_logs, jobs.jobs_stop, jobs.jobs_resume, jobs.jobs_remove),
    "lab": (
        lab.lab_up, lab.lab_down, lab.lab_status, lab.lab_crash, lab.lab_cut, lab.lab_slow, lab.lab_heal, lab.lab_ssh,
        stack.lab_aws,
    ),
    "stack": (
        stack.stack_init, stack.stack_plan, stack.stack_create, stack.stack_status, stack.stack_update,
        stack.stack_replace, stack.stack_delete,
    ),
}
# fmt: on

ns = Collection()
for one in TOP_LEVEL:
    ns.add_task(one)
for group, members in GROUPS.items():
    ns.add_collection(Collection(group, *members))
demos = Collection("demo")
demos.add_task(lab.demo, name="resnet50", default=True)  # `inv demo`
demos.add_task(lab.demo_maskrcnn)
ns.add_collection(demos)
