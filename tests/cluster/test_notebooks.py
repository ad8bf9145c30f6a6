"""The project's notebooks, run from top to bottom on a lab's master with the variables of the kernel they get.

What the third one, `predict.ipynb`, does is in tests/trainer_maskrcnn/test_use.py, which has a trained model.
"""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from cluster.inventory import ROOT, Cluster, load_cluster
from cluster.ssh.fanout import Executor
from cluster.tunnels.jupyter_page import NOTEBOOKS, write_kernel
from cluster.tunnels.service import ServiceRequest
from lab.record import Lab
from tests.cluster.made_job import made_job, write_metrics

CELLS = """\
import ast, json, sys
names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        body = ast.parse("".join(cell["source"])).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        shown = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None
        if shown is not None:
            print(repr(shown))
if "plt" in names:
    print("titles", [axis.get_title() for axis in names["plt"].gcf().axes], [len(axis.lines[0].get_xdata()) for axis in names["plt"].gcf().axes])
"""


@pytest.fixture
def cluster(four_hosts: Lab) -> Cluster:
    return load_cluster(f"lab:{four_hosts.name}")


def said(name: str, cluster: Cluster, reach: Executor, folder: Path, **told: str) -> str:
    """What its cells print and show, in their order."""
    wanted = ServiceRequest(kind="jupyter", shared=cluster.shared, cluster=str(cluster.folder))
    write_kernel(folder / "kernel", Path(cluster.python), wanted)
    variables: dict[str, Any] = json.loads((folder / "kernel/kernel.json").read_text())["env"]
    words = [f"{k}={v}" for k, v in {**variables, "MPLBACKEND": "Agg", **told}.items()]
    command = shlex.join(["env", *words, cluster.python, "-c", CELLS, str(ROOT / NOTEBOOKS[name])])
    result = reach.run([cluster.master], command)[cluster.master]
    assert result.ok, result.text + result.stderr.decode()
    return result.text


@pytest.mark.slow
def test_a_training_is_started_and_followed(cluster: Cluster, reach: Executor, tmp_path: Path) -> None:
    """All hosts answer, a job with a rank on each succeeds, and its log is there."""
    text = said("train.ipynb", cluster, reach, tmp_path)

    assert f"<cluster {cluster.name}: " in text
    assert "succeeded" in text
    assert {f"rank {n} of 4" for n in range(4)} <= {line.partition(": ")[2] or line for line in text.splitlines()}


def test_the_numbers_of_a_training_are_drawn(
    cluster: Cluster, reach: Executor, tmp_path: Path, four_hosts: Lab
) -> None:
    """Its curves, with each record of it, and its evaluations; of the job that is named."""
    paths = made_job(four_hosts.shared, name="20260101-000000-notebook-ab12")
    write_metrics(paths, 200)
    text = said("watch.ipynb", cluster, reach, tmp_path, DLAMI_NOTEBOOK_JOB=paths.folder.name)

    assert f"'{paths.folder.name}'" in text
    assert "titles ['loss', 'images_per_s'] [200, 200]" in text
    assert "180 {'top1': 54.0" in text
