"""The tasks that run on the master, as an operator uses them: those of data, and those that use a network."""

import json
from typing import Any

import pytest

from tests.conftest import Inv


def test_data_is_drawn_made_into_shards_checked_and_bundled(inv: Inv) -> None:
    """Each task's dry run says what would be and leaves nothing; then they do it, one with the other's result."""
    raw, shards, shapes, tar = (f"/shared/tasks/{name}" for name in ("raw", "shards", "shapes", "shapes.tar"))
    draw = ("data.sample", "--out", raw)
    prepare = ("data.imagenet", "--raw", raw, "--out", shards)
    bundle = ("data.bundle", "--folder", shapes, "--out", tar)
    few = ("--", "--train", 20, "--validation", 10)

    assert f"{raw} would get 20 training" in succeeded(inv(*draw, "--dry-run", *few))
    succeeded(inv(*draw, *few))
    assert "20 training and 10 validation files" in succeeded(inv(*prepare, "--dry-run"))
    assert "trainer.imagenet" in succeeded(inv(*prepare, "--dry-run", "--hosts", "0-1"))
    assert "manifest.json is missing" in inv("data.verify", shards).stderr
    succeeded(inv(*prepare))
    answer = json.loads(succeeded(inv("data.verify", shards, "--decode", "--json")))
    assert (answer["records"], answer["problems"]) == (30, [])

    succeeded(inv("data.sample", "--coco", "--out", shapes, "--", "--train", 2, "--val", 1, "--size", 64))
    assert "would hold 5 files" in succeeded(inv(*bundle, "--dry-run"))
    assert inv("run", "--hosts", "0", "--", f"test -e {tar}").returncode == 1
    assert f"{tar}: 5 files" in succeeded(inv(*bundle))
    assert "would become /shared/tasks/coco/val2017" in succeeded(
        inv("data.coco", "--out", "/shared/tasks/coco", "--dry-run")
    )
    refused = inv("data.coco", "--out", "/shared/tasks/coco", "--", "--no-download")
    assert refused.returncode == 2 and "lacks annotations_trainval2017.zip" in refused.stderr


def succeeded(done: Any) -> Any:
    """Its output."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("task", ["maskrcnn.predict", "maskrcnn.evaluate", "maskrcnn.export", "resnet50.export"])
def test_what_uses_a_trained_network_is_reached_by_its_task(inv: Inv, task: str) -> None:
    """On the master, with all words after `--`; its own refusal and exit code come back."""
    module = f"python -m trainer.{task}"
    assert f"usage: {module} " in succeeded(inv(task, "--", "--help"))
    refused = inv(task, "--", "--job-dir", "/shared/jobs/none", "--nothing-is-called-so")
    assert refused.returncode == 2 and f"'inv {task} -- --help'" in refused.stderr, refused.stderr
