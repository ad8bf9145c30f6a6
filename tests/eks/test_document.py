"""Documents and their YAML: every value comes back the same, whoever reads it."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import ConfigError
from eks.document import document, labels, object_name, read, text

words = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x85\u2028\u2029"), max_size=30)
awkward = st.sampled_from(
    [
        "y",
        "No",
        "on",
        "~",
        "null",
        "1e3",
        "0o17",
        "017",
        "1_000",
        "12:30",
        ".5",
        "0x1f",
        "- a",
        "a: b",
        "#",
        "a\n b\n",
        " a\n",
        "",
    ]
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), words, awkward),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(st.lists(st.fixed_dictionaries({"apiVersion": words, "kind": words, "spec": values}), max_size=3))
def test_every_value_comes_back(documents: list[dict[str, Any]]) -> None:
    """What is written is what is read, for any text that JSON could carry; writing it again changes nothing."""
    written = text(documents)
    assert documents == list(yaml.safe_load_all(written))
    assert written == text(read(written))


def test_it_is_written_as_people_write_it() -> None:
    """Names before what they name, lists indented, several lines as a block, no anchors, no folded lines."""
    labels_twice = {"a": "b"}
    one = {
        "metadata": {"labels": labels_twice, "name": "x"},
        "kind": "Pod",
        "spec": {"containers": [{"image": "i:1", "name": "c", "args": ["y", "1e3", "long " * 40]}], "s": labels_twice},
        "apiVersion": "v1",
        "data": {"run": "a\nb\n"},
    }
    assert text([one]).splitlines() == [
        "---",
        "apiVersion: v1",
        "kind: Pod",
        "metadata:",
        "  name: x",
        "  labels:",
        "    a: b",
        "spec:",
        "  containers:",
        "    - name: c",
        "      image: i:1",
        "      args:",
        '        - "y"',
        '        - "1e3"',
        f"        - '{'long ' * 40}'",
        "  s:",
        "    a: b",
        "data:",
        "  run: |",
        "    a",
        "    b",
    ]


def test_all_documents_are_found_by_their_labels() -> None:
    """The project's and the cluster's label are on every object, in the form that a selector takes."""
    assert {"app.kubernetes.io/part-of": "dlami-cluster", "dlami/cluster": "team-a"} == labels("Team-A")
    one = document("v1", "Pod", "p", "a", namespace="n", metadata={"labels": {"x": "y"}, "annotations": {}}, spec={})
    assert one["metadata"] == {"name": "p", "namespace": "n", "labels": {**labels("a"), "x": "y"}, "annotations": {}}
    assert {"dlami/job": "42", "app.kubernetes.io/name": "stage"}.items() <= labels("a", job="42", app="stage").items()


def test_a_name_that_kubernetes_refuses_is_refused_here() -> None:
    """Before anything is rendered, with the file in which to change it."""
    assert "training-tensorboard" == object_name("Training", "tensorboard")
    for name in ("a_b", "-a", "a" * 64, ""):
        with pytest.raises(ConfigError, match=r"cannot name an object of Kubernetes.*cluster\.toml"):
            object_name(name)


@pytest.mark.parametrize("stream", ["a: [", "- 1", "kind: Pod"])
def test_what_is_no_document_is_refused(stream: str) -> None:
    """A sentence, not a traceback."""
    with pytest.raises(ConfigError, match="this is no"):
        read(stream)
