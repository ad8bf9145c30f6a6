"""Every source of a label that is there is compared with the others; a contradiction is refused by name."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.common.data import dataset
from trainer.common.files.errors import ConfigError
from trainer.imagenet.raw import read_raw
from trainer.resnet50.config import ResNetConfig
from trainer.resnet50.plan import look_up

SYNSETS = ("n01440764", "n01443537", "n01484850")
FOLDER_OF = (2, 0, 1, 0, 2, 1)  # of ILSVRC2012_val_00000001 to 6


def image(number: int) -> str:
    """The name of a validation image, without its ending."""
    return f"ILSVRC2012_val_{number:08d}"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Validation images in folders of their synsets, and a list in the order of their numbers."""
    folder = tmp_path / "raw"
    for synset in SYNSETS:
        (folder / "train" / synset).mkdir(parents=True)
        (folder / "val" / synset).mkdir(parents=True)
        (folder / "train" / synset / f"{synset}_1.JPEG").touch()
    for number, place in enumerate(FOLDER_OF, start=1):
        (folder / "val" / SYNSETS[place] / f"{image(number)}.JPEG").touch()
    (folder / "synsets.txt").write_text("".join(f"{s} a name\n" for s in SYNSETS))
    (folder / "val_synsets.txt").write_text("".join(f"{SYNSETS[i]}\n" for i in FOLDER_OF))
    return folder


def flatten(raw: Path) -> None:
    """Puts the validation images into val/ itself."""
    for path in sorted(raw.glob("val/*/*")):
        path.rename(raw / "val" / path.name)
    for folder in list((raw / "val").iterdir()):
        if folder.is_dir():
            folder.rmdir()


def labels(raw: Path) -> dict[str, str]:
    """Synset by the file's own name."""
    return {Path(s.filename).stem: s.synset for s in read_raw(raw).validation}


WANTED = {image(n): SYNSETS[i] for n, i in enumerate(FOLDER_OF, start=1)}
BOXES = "<annotation><folder>val</folder><object><name>{}</name></object><object><name>{}</name></object></annotation>"


def boxes(raw: Path, number: int, synset: str) -> None:
    """Writes a validation image's box annotation as ImageNet has it."""
    folder = raw / "Annotations/CLS-LOC/val"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{image(number)}.xml").write_text(BOXES.format(synset, synset))


def kaggle(raw: Path, told: dict[str, str], name: str = "LOC_val_solution.csv") -> None:
    """Writes Kaggle's table."""
    rows = (f"{stem},{synset} 1 2 3 4 {synset} 5 6 7 8 \n" for stem, synset in told.items())
    (raw / name).write_text("ImageId,PredictionString\n" + "".join(rows))


def test_the_folder_of_a_validation_image_is_its_label(raw: Path) -> None:
    """With a list in the order of the numbers, in the order of the paths, or without a list."""
    assert WANTED == labels(raw)
    in_paths = sorted(raw.glob("val/*/*"))
    (raw / "val_synsets.txt").write_text("".join(f"{path.parent.name}\n" for path in in_paths))
    assert WANTED == labels(raw)
    (raw / "val_synsets.txt").unlink()
    assert WANTED == labels(raw)


def test_every_source_alone_labels_flat_files(raw: Path) -> None:
    """A list by number, a list by name (also with the mark that Windows writes), Kaggle's table, box annotations."""
    flatten(raw)
    assert WANTED == labels(raw)
    lines = "".join(f"{stem}.JPEG\t{synset}\n" for stem, synset in reversed(WANTED.items()))
    (raw / "val_synsets.txt").write_text("\ufeff" + lines)
    assert WANTED == labels(raw)
    (raw / "val_synsets.txt").unlink()
    kaggle(raw, WANTED)
    assert WANTED == labels(raw)
    (raw / "LOC_val_solution.csv").unlink()
    for number, place in enumerate(FOLDER_OF, start=1):
        boxes(raw, number, SYNSETS[place])
    assert WANTED == labels(raw)
    (raw / f"Annotations/CLS-LOC/val/{image(4)}.xml").unlink()
    with pytest.raises(ConfigError, match=r"val_synsets.txt cannot be read: No such file"):
        labels(raw)


@pytest.mark.parametrize(
    ("spoil", "file", "says"),
    [
        (
            lambda raw: (raw / "val_synsets.txt").write_text("".join(f"{SYNSETS[i]}\n" for i in (1, 0, 1, 0, 2, 1))),
            image(1),
            "val_synsets.txt says n01443537, its folder says n01484850",
        ),
        (lambda raw: boxes(raw, 2, "n01484850"), image(2), "Annotations/CLS-LOC/val says n01484850"),
        (lambda raw: boxes(raw, 2, "n09999999"), image(2), "Annotations/CLS-LOC/val says n09999999"),
        (lambda raw: kaggle(raw, {image(3): SYNSETS[0]}), image(3), "LOC_val_solution.csv says n01440764"),
        (
            lambda raw: (raw / "val_synsets.txt").write_text("".join(f"{s} {SYNSETS[0]}\n" for s in WANTED)),
            image(1),
            "val_synsets.txt says n01440764, its folder says n01484850",
        ),
        (
            lambda raw: (raw / f"val/n01440764/{image(2)}.JPEG").rename(raw / "val/n01440764/val_n01443537.JPEG"),
            "val_n01443537",
            "its name says n01443537",
        ),
        (
            lambda raw: (raw / "train/n01443537/n01440764_7.JPEG").touch(),
            "n01440764_7",
            "its folder says n01443537, its name says n01440764",
        ),
        (
            lambda raw: shutil.move(raw / "train/n01440764", raw / "train/n01443537/n01440764"),
            "n01440764/n01440764_1",
            "its folder says n01443537, its inner folder says n01440764",
        ),
        (
            lambda raw: kaggle(raw, {"n01440764_1": "n01443537"}, "LOC_train_solution.csv"),
            "n01440764_1",
            "LOC_train_solution.csv says n01443537",
        ),
    ],
)
def test_sources_that_contradict_each_other_are_refused(
    raw: Path, spoil: Callable[[Path], object], file: str, says: str
) -> None:
    """With the file and what each of them says of it."""
    spoil(raw)
    with pytest.raises(ConfigError, match=r"contradict each other: .*correct the wrong source") as error:
        read_raw(raw)

    assert f"{file}.JPEG (" in str(error.value) and says in str(error.value)


def test_a_box_that_names_no_synset_says_nothing(raw: Path) -> None:
    """Annotations of other sets call their objects by words."""
    boxes(raw, 1, "white shark")
    assert WANTED == labels(raw)


def test_kaggles_folders_are_looked_through(raw: Path) -> None:
    """The images lie in ILSVRC/Data/CLS-LOC, the table above and the boxes beside."""
    inner = raw.parent / "ILSVRC/Data/CLS-LOC"
    inner.parent.mkdir(parents=True)
    raw.rename(inner)
    flatten(inner)
    assert WANTED == labels(inner)
    boxes(raw.parent / "ILSVRC", 1, SYNSETS[0])
    with pytest.raises(ConfigError, match="Annotations/CLS-LOC/val says n01440764"):
        labels(inner)
    shutil.rmtree(raw.parent / "ILSVRC/Annotations")
    kaggle(raw.parent, {image(1): SYNSETS[0]})
    with pytest.raises(ConfigError, match=r"LOC_val_solution.csv says n01440764"):
        labels(inner)


def test_a_list_that_may_be_read_in_two_ways_is_refused(raw: Path) -> None:
    """Files in folders that say no synset: by name and by path differ. A missing number moves all lines after it."""
    flatten(raw)
    last = raw / f"val/{image(6)}.JPEG"
    last.rename(last.with_name(f"{image(7)}.JPEG"))
    with pytest.raises(ConfigError, match=r"is file 6 of 6, but its name says line 7: bring the missing files"):
        labels(raw)
    for place, path in enumerate(sorted((raw / "val").iterdir())):
        folder = raw / "val" / ("b" if place < 3 else "a")
        folder.mkdir(exist_ok=True)
        path.rename(folder / f"{place}.JPEG")
    with pytest.raises(
        ConfigError, match=r"depends on whether files are in the order of their names or of their paths"
    ):
        labels(raw)


def test_one_image_in_two_folders_is_refused(raw: Path) -> None:
    """Its labels differ, and there is no list to tell which is right."""
    (raw / "val_synsets.txt").unlink()
    (raw / f"val/n01443537/{image(2)}.JPEG").touch()
    with pytest.raises(ConfigError, match="are the same image with different labels: remove the wrong one"):
        read_raw(raw)


def test_a_folder_of_a_synset_that_is_not_listed_is_refused(raw: Path) -> None:
    """As in train/."""
    (raw / "val/n01484850").rename(raw / "val/n07777777")
    with pytest.raises(ConfigError, match="n07777777 is not in the list of synsets"):
        read_raw(raw)


def test_a_list_of_synsets_may_have_tabs(raw: Path) -> None:
    """As WordNet's own words.txt."""
    (raw / "synsets.txt").write_text("".join(f"{s}\ta name\n" for s in SYNSETS))
    assert SYNSETS == read_raw(raw).synsets


def manifest(folder: Path, *synsets: str) -> None:
    """Writes the manifest of a prepared split."""
    folder.mkdir(parents=True)
    classes = ", ".join(f'{{"label": {i}, "synset": "{s}"}}' for i, s in enumerate(synsets, start=1))
    (folder / dataset.MANIFEST).write_text(
        f'{{"files": 0, "written": 0, "rejected": {{}}, "splits": {{}}, "classes": [{classes}]}}'
    )


def test_splits_with_different_classes_are_not_trained_on(tmp_path: Path) -> None:
    """Their labels mean different synsets; nor is a network with fewer classes than the data."""
    manifest(tmp_path / "train", "n01", "n02", "n04")
    manifest(tmp_path / "validation", "n02", "n03")
    with pytest.raises(ConfigError, match=re.escape(f"label 1 is n01 in {tmp_path}/train/manifest.json, but n02 in")):
        look_up(ResNetConfig(data_dir=tmp_path, job_dir=tmp_path / "job", num_batches=1))
    shutil.rmtree(tmp_path / "validation")
    assert 3 == dataset.classes_in(tmp_path)
    with pytest.raises(ConfigError, match=r"--classes is 2, but .* has 3"):
        look_up(ResNetConfig(data_dir=tmp_path, job_dir=tmp_path / "job", num_batches=1, classes=2))
