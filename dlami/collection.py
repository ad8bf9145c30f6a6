"""Collection of all tasks by name, and the tasks on the project itself."""

import sys

from invoke import Collection, Context

from cluster.errors import ConfigError
from dlami.tasks import cost as money
from dlami.tasks import (
    data,
    eks,
    eks_image,
    eks_services,
    estimate,
    files,
    guard,
    hosts,
    jobs,
    join,
    lab,
    matrix,
    packages,
    reports,
    running,
    training,
    tunnels,
    views,
)
from dlami.tasks import eks_cluster as eks_cluster
from dlami.tasks import stack as stack
from dlami.tasks.command import command


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


@command(
    help={"message": "what was printed, or a part of it, in quotes", "json": "as JSON"},
    positional=["message"],
)
def explain(c: Context, message: str, json: bool = False) -> None:
    """Explain a message by docs/troubleshooting.md, cause and remedy: inv explain "it refuses connections"."""
    import dataclasses

    from cluster.terminal import print_json
    from dlami.explain import find_entries

    found = find_entries(message)
    if json:
        print_json([dataclasses.asdict(entry) for entry in found])
        return
    print("\n\n".join(map(str, found)))


@command
def docs(c: Context) -> None:
    """Write docs/tasks.md from the tasks, and the table of instance types in docs/stack.md."""
    from cfn.frameworks import in_page
    from cluster.files import write_atomically
    from cluster.inventory import ROOT
    from dlami.task_page import page

    if not (ROOT / "docs").is_dir():
        raise ConfigError("the docs are not part of an installed dlami-cluster: run this in a checkout of it")
    write_atomically(ROOT / "docs/tasks.md", page(ns))
    stack_page = ROOT / "docs/stack.md"
    write_atomically(stack_page, in_page(stack_page.read_text()))


# fmt: off
TOP_LEVEL = (
    hosts.run_command, hosts.login, hosts.disconnect, hosts.kill, hosts.reboot, hosts.health, views.top,
    views.metrics, join.set_up,
    files.copy_files, files.fetch, files.stage, files.sync, stack.ssh_master, guard.keep,
    tunnels.tensorboard, tunnels.jupyter,
    tunnels.tunnels, explain, docs, bench,
)
GROUPS = {
    "hosts": (hosts.hosts_list, hosts.hosts_forgive, stack.hosts_write, join.hosts_join),
    "data": (
        data.data_status, data.data_sample, data.data_imagenet, data.data_verify, data.data_coco, data.data_bundle,
    ),
    "train": (
        running.train_run, training.train_resnet50, training.train_resnet50_torch, training.train_maskrcnn,
        training.train_benchmark, training.train_plot, training.train_scaling, matrix.train_matrix,
        estimate.train_estimate,
    ),
    "resnet50": (training.resnet50_export,),
    "maskrcnn": (training.maskrcnn_predict, training.maskrcnn_evaluate, training.maskrcnn_export),
    "packages": (packages.packages_list, packages.packages_remove),
    "jobs": (
        jobs.jobs_list, jobs.jobs_show, jobs.jobs_logs, jobs.jobs_watch, jobs.jobs_stop, jobs.jobs_resume,
        jobs.jobs_heal, jobs.jobs_remove, reports.jobs_report, reports.jobs_compare,
        reports.jobs_results,
    ),
    "notify": (jobs.notify_test,),
    "lab": (
        lab.lab_up, lab.lab_down, lab.lab_status, lab.lab_crash, lab.lab_cut, lab.lab_slow, lab.lab_notice,
        lab.lab_heal, lab.lab_ssh, lab.lab_kube, stack.lab_aws,
    ),
    "stack": (
        stack.stack_init, stack.stack_plan, stack.stack_create, stack.stack_status, stack.stack_update,
        stack.stack_replace, stack.stack_delete, money.stack_stop, money.stack_start, money.stack_cost,
        money.stack_orphans, money.stack_blocks, money.stack_policy,
    ),
    "eks": (
        eks_cluster.eks_plan, eks_cluster.eks_create, eks_cluster.eks_status, eks_cluster.eks_delete,
        eks_services.eks_render, eks_services.eks_stage, eks_services.eks_tensorboard, eks_services.eks_jupyter,
        eks_image.eks_image,
    ),
    "eks.train": (
        eks.eks_train_run, eks.eks_train_resnet50, eks.eks_train_resnet50_torch, eks.eks_train_maskrcnn,
        eks.eks_train_benchmark,
    ),
    "eks.jobs": (eks.eks_jobs_list, eks.eks_jobs_show, eks.eks_jobs_logs, eks.eks_jobs_stop),
}
# fmt: on

ns = Collection()
for one in TOP_LEVEL:
    ns.add_task(one)
for group, members in GROUPS.items():
    *above, own = group.split(".")
    place = ns
    for name in above:
        if name not in place.collections:
            place.add_collection(Collection(name))
        place = place.collections[name]
    place.add_collection(Collection(own, *members))
demos = Collection("demo")
demos.add_task(lab.demo, name="resnet50", default=True)  # `inv demo`
demos.add_task(lab.demo_maskrcnn)
ns.add_collection(demos)
