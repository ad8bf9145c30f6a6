"""The hostfile and the language of host sets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import ConfigError
from cluster.hosts import Host, hostfile, parse_hostfile
from cluster.hostset import fold, select

HOSTS = tuple(Host(rank=r, address=f"10.0.0.{r + 1}", slots=8) for r in range(10))


def test_hostfile_keeps_the_order_and_the_reference_s_form():
    """Comments and blank lines are skipped, the first host is the master, `localhost` is a host."""
    text = "# ours\nlocalhost slots=8\n\n172.100.1.200 slots=8  # a worker\n172.48.3.124 slots=4\n"
    hosts = parse_hostfile(text, "hosts")

    assert [(0, "localhost", 8), (1, "172.100.1.200", 8), (2, "172.48.3.124", 4)] == [
        (h.rank, h.address, h.slots) for h in hosts
    ]
    assert hosts[0].is_local
    assert not hosts[1].is_local


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.9", "hosts:1: expected '<address> slots=<n>', got '10.0.0.9': say how many ranks"),
        ("10.0.0.9 8", "hosts:1: expected '<address> slots=<n>', got '10.0.0.9 8'"),
        (
            "10.0.0.9 slots=eight",
            "hosts:1: expected '<address> slots=<n>', got '10.0.0.9 slots=eight': 'eight' is not a number",
        ),
        ("10.0.0.9 slots=", "'' is not a number"),
        ("10.0.0.9 slots=2.5", "'2.5' is not a number"),
        ("10.0.0.9 slots=0", "hosts:1: slots is 0, a host holds at least 1 rank"),
        ("10.0.0.9 slots=-1", "hosts:1: slots is -1, a host holds at least 1 rank"),
        ("a slots=1\nb slots=1\na slots=2", "hosts:3: a is already on line 1"),
        ("localhost slots=1\n127.0.0.1 slots=1", "hosts:2: localhost is already on line 1"),
        ("-oProxyCommand=x slots=1", "'-oProxyCommand=x' is not an address"),
        ("a b slots=1", "hosts:1: expected"),
        ("", "hosts: no host in it"),
        ("# nothing\n\n", "hosts: no host in it"),
    ],
)
def test_a_bad_hostfile_is_refused_with_line_and_expectation(text, expected):
    """The file, the line, what stands there and what should."""
    with pytest.raises(ConfigError) as error:
        parse_hostfile(text, "hosts")

    assert expected in str(error.value)
    assert 2 == error.value.exit_code


def test_every_bad_line_is_named_at_once():
    """One run of the command is enough to mend the file."""
    with pytest.raises(ConfigError) as error:
        parse_hostfile("a\nb slots=2\nc slots=x\n", "hosts")

    assert ["hosts:1", "hosts:3"] == [line.split(": ")[0] for line in str(error.value).splitlines()]


@given(
    st.lists(
        st.tuples(st.from_regex(r"[a-z][a-z0-9.-]{0,8}[a-z0-9]", fullmatch=True), st.integers(1, 64)),
        min_size=1,
        max_size=20,
        unique_by=lambda t: t[0],
    ).filter(lambda pairs: all(a != "localhost" for a, _ in pairs))
)
def test_a_hostfile_reads_back_as_it_was_written(pairs):
    """hostfile and parse_hostfile are inverse, order included."""
    hosts = tuple(Host(rank=r, address=a, slots=s) for r, (a, s) in enumerate(pairs))

    assert hosts == parse_hostfile(hostfile(hosts), "hosts")


@pytest.mark.parametrize(
    ("expression", "ranks"),
    [
        (None, range(10)),
        ("@all", range(10)),
        ("@master", [0]),
        ("@workers", range(1, 10)),
        ("3", [3]),
        ("0,2-4", [0, 2, 3, 4]),
        ("!3", [0, 1, 2, 4, 5, 6, 7, 8, 9]),
        ("@workers,!4-9", [1, 2, 3]),
        ("10.0.0.2", [1]),
        ("10.0.0.[1-3,9]", [0, 1, 2, 8]),
        ("@failed", [4, 6]),
        ("@failed,0", [0, 4, 6]),
    ],
)
def test_select(expression, ranks):
    """Terms add up, `!` takes away, the result is in rank order."""
    assert list(ranks) == [h.rank for h in select(HOSTS, expression, failed=["10.0.0.5", "10.0.0.7"])]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("10", "ranks here are 0 to 9"),
        ("4-2", "ranks here are 0 to 9, the smaller one first"),
        ("@gpu", "'@gpu' is not a group of hosts"),
        ("10.9.9.9", "10.9.9.9 is not a host of this cluster, which has 10.0.0.[1-10]"),
        ("0,,1", "has an empty term"),
        ("3,!3", "leaves none of the 10 hosts"),
        ("@failed", "no earlier run is on record"),
    ],
)
def test_a_term_that_names_nothing_is_refused(expression, expected):
    """A typing error never means "all hosts"."""
    with pytest.raises(ConfigError) as error:
        select(HOSTS, expression)

    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["10.0.0.1"], "10.0.0.1"),
        ([f"10.0.0.{n}" for n in (1, 2, 3, 9)], "10.0.0.[1-3,9]"),
        ([f"10.0.0.{n}" for n in (9, 10, 11)], "10.0.0.[9-11]"),
        ([f"gpu{n:02}" for n in (1, 2, 11)] + ["login"], "gpu[01-02,11],login"),
        (["a1", "b1", "a2"], "a[1-2],b1"),
    ],
)
def test_fold(names, short):
    """Neighbours in number become a range."""
    assert short == fold(names)


@given(st.sets(st.integers(0, 300), min_size=1))
def test_what_fold_writes_select_reads(numbers):
    """A folded name can be pasted back into --hosts."""
    hosts = tuple(Host(rank=r, address=f"n{i}", slots=1) for r, i in enumerate(range(301)))
    names = [f"n{i}" for i in sorted(numbers)]

    assert names == [h.address for h in select(hosts, fold(names))]
