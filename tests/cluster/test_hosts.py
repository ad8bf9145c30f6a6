"""The hostfile and the language of host sets."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import ConfigError
from cluster.hosts import Host, hostfile, parse_hostfile, read_hostfile, table
from cluster.hostset import fold, names_in, select

HOSTS = tuple(Host(rank=r, address=f"10.0.0.{r + 1}", slots=8) for r in range(10))


SPARED = parse_hostfile("a slots=2\n# spare c slots=2  # in rack 4\nb slots=2\n#spare d slots=4\n", "hosts")


def test_a_spare_is_a_comment_to_mpirun_and_comes_after_all_that_train() -> None:
    """It has a rank by which tasks name it; a comment that only speaks of spares is none."""
    assert [("a", 0, False), ("b", 1, False), ("c", 2, True), ("d", 3, True)] == [
        (h.address, h.rank, h.is_spare) for h in SPARED
    ]
    assert "a slots=2\nb slots=2\n# spare c slots=2\n# spare d slots=4\n" == hostfile(SPARED)
    assert "2 hosts, 4 slots, and 2 spares" == table(SPARED).splitlines()[-1]
    assert 1 == len(parse_hostfile("a slots=1\n# spare hosts are in rack 4\n# spare: none\n", "hosts"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a slots=1\n# spare a slots=1", "hosts:2: a is already on line 1"),
        ("a slots=1\n# spare b slots=x", "hosts:2: expected '<address> slots=<n>', got 'b slots=x'"),
        ("# spare b slots=2", "hosts: no host in it"),
    ],
)
def test_a_bad_spare_is_refused_as_any_other_line(text: str, expected: str) -> None:
    """With the same words."""
    with pytest.raises(ConfigError, match=re.escape(expected)):
        parse_hostfile(text, "hosts")


@pytest.mark.parametrize(
    ("expression", "all_tasks", "trainings"),
    [
        (None, "abcd", "ab"),
        ("@all", "abcd", "ab"),
        ("!1", "acd", "a"),
        ("@workers", "b", "b"),
        ("@spares", "cd", "cd"),
        ("0,2", "ac", "ac"),
        ("@all,d", "abcd", "abd"),
    ],
)
def test_a_spare_is_reached_by_every_task_and_trains_only_where_it_is_named(
    expression: str | None, all_tasks: str, trainings: str
) -> None:
    """`inv run`, `health`, `copy` and `stage` reach it."""
    assert all_tasks == "".join(h.address for h in select(SPARED, expression))
    assert trainings == "".join(h.address for h in select(SPARED, expression, to_train=True))


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
        ("a slots=1\n10.0.0.9 slots=0", "hosts:2: slots is 0, a host holds at least 1 rank"),
        ("10.0.0.9 slots=-1", "hosts:1: slots is -1, a host holds at least 1 rank"),
        ("a slots=1\nb slots=1\na slots=2", "hosts:3: a is already on line 1"),
        ("localhost slots=1\n127.0.0.1 slots=1", "hosts:2: localhost is already on line 1"),
        ("-oProxyCommand=x slots=1", "'-oProxyCommand=x' is not an address"),
        ("a b slots=1", "hosts:1: expected"),
        ("a slots=4097", "hosts:1: slots is 4097, a host holds at most 4096 ranks"),
        ("a slots=" + "9" * 5000, "hosts:1: slots is 999"),
        ("a slots=-" + "9" * 5000, "a host holds at least 1 rank"),
        ("7 slots=1", "hosts:1: expected '<address> slots=<n>', got '7 slots=1': '7' names ranks in every task"),
        ("1-3 slots=1", "'1-3' names ranks in every task"),
        (
            "a slots=1\n\nlocalhost slots=1",
            "hosts:3: localhost is this machine, and the first line is the master: move",
        ),
        ("a" * 254 + " slots=1", "is not an address"),
        ("", "hosts: no host in it"),
        ("# nothing\n\n", "hosts: no host in it"),
    ],
)
def test_a_bad_hostfile_is_refused_with_line_and_expectation(text: Any, expected: Any) -> None:
    """The file, the line, what stands there and what should."""
    with pytest.raises(ConfigError) as error:
        parse_hostfile(text, "hosts")

    assert expected in str(error.value)
    assert 2 == error.value.exit_code


def test_every_bad_line_is_named_at_once() -> None:
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
def test_a_hostfile_reads_back_as_it_was_written(pairs: Any) -> None:
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
        ("0-8/2", [0, 2, 4, 6, 8]),
        ("1-9/4,!5", [1, 9]),
        ("10.0.0.[1-9/4,2]", [0, 1, 4, 8]),
        ("10.[0-1/2].0.[1-3]", [0, 1, 2]),
        ("10.[0,0].[0-0].[1-3/2]", [0, 2]),
    ],
)
def test_select(expression: Any, ranks: Any) -> None:
    """Terms add up, `!` takes away, the result is in rank order."""
    assert list(ranks) == [h.rank for h in select(HOSTS, expression, failed=["10.0.0.5", "10.0.0.7"])]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("10", "ranks here are 0 to 9"),
        ("8-10", "ranks here are 0 to 9"),
        ("9" * 5000, "ranks here are 0 to 9"),
        ("10.0.0.[01-02]", "10.0.0.[01-02] are not hosts of this cluster"),
        ("10.0.0.[1-30000000]", "'10.0.0.[1-30000000]' names 30,000,000 hosts: give ranges of hosts that are there"),
        ("10.0.0.[1-" + "9" * 5000 + "]", "hosts: give ranges"),
        ("10.0.0.[3-1]", "'3-1' is not a number or a range"),
        ("10.0.0.[1-3/0]", "'1-3/0' is not a number or a range such as 1-9 or 1-9/2"),
        ("10.0.0.[3/2]", "'3/2' is not a number or a range such as 1-9 or 1-9/2"),
        ("10.0.0.[1-3/]", "'1-3/' is not a number or a range"),
        ("2/2", "'2/2' is not a number or a range"),
        ("0-4/0", "'0-4/0' is not a number or a range"),
        ("10.[0-999].[0-999].[0-9]", "names 10,000,000 hosts: give ranges of hosts that are there"),
        ("10.0.[0].[20-21]", "10.0.0.[20-21] are not hosts of this cluster"),
        ("10.0.[0.[1-3]]", "is not a host"),
        ("4-2", "ranks here are 0 to 9, the smaller one first"),
        ("@gpu", "'@gpu' is not a group of hosts"),
        ("10.9.9.9", "10.9.9.9 is not a host of this cluster, which has 10.0.0.[1-10]"),
        ("0,,1", "has an empty term"),
        ("3,!3", "leaves none of the 10 hosts"),
        ("@failed", "no earlier run is on record"),
    ],
)
def test_a_term_that_names_nothing_is_refused(expression: Any, expected: Any) -> None:
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
        (["a", "a0"], "a,a0"),
        (["gpu1", "gpu", "gpu2"], "gpu[1-2],gpu"),
        (["n1", "n01", "n001"], "n[001,01,1]"),
        (["a1", "a1"], "a1"),
    ],
)
def test_fold(names: Any, short: Any) -> None:
    """Neighbours in number become a range."""
    assert short == fold(names)


def test_a_hostfile_is_written_master_first_whatever_the_order_given() -> None:
    """mpirun takes the first line for rank 0."""
    assert "a slots=1\nb slots=2\n" == hostfile(
        [Host(rank=1, address="b", slots=2), Host(rank=0, address="a", slots=1)]
    )


def test_numbers_with_leading_zeros_unfold_to_names_of_that_width() -> None:
    """`gpu[08-10]` is gpu08, gpu09, gpu10, as ClusterShell and Slurm write it."""
    hosts = tuple(Host(rank=r, address=f"gpu{r:02}", slots=1) for r in range(12))

    assert ["gpu08", "gpu09", "gpu10"] == [h.address for h in select(hosts, "gpu[08-10]")]


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("gpu[1-9/2]-[0,1]", [f"gpu{a}-{b}" for a in (1, 3, 5, 7, 9) for b in (0, 1)]),
        ("r[01-03/2]n[8-10]", [f"r{a}n{b}" for a in ("01", "03") for b in (8, 9, 10)]),
        ("a[1,1-2]b", ["a1b", "a1b", "a2b"]),
        ("x[5]", ["x5"]),
        ("x[1-6/5],y", ["x1", "x6", "y"]),
        ("[1-2][3-4]", ["13", "14", "23", "24"]),
    ],
)
def test_steps_and_several_brackets_stand_for_names_as_clustershell_has_them(expression: str, names: list[str]) -> None:
    """The last bracket varies fastest; a width is that of a bracket's own first number."""
    assert names == names_in(expression)


def test_a_slip_in_a_range_makes_a_short_message_at_once() -> None:
    """Thirty million names are neither made nor printed; nor are a hundred thousand."""
    for expression in ("10.0.0.[1-30000000]", "10.0.0.[1-99999]", ",".join(f"x{n}y" for n in range(5000))):
        with pytest.raises(ConfigError) as error:
            select(HOSTS, expression)
        assert 500 > len(str(error.value))


NAMES = st.one_of(
    st.from_regex(r"[a-z]{0,2}[0-9]{0,3}[a-z.-]{0,2}[0-9]{0,3}[a-z0-9]", fullmatch=True),
    st.from_regex(r"10\.0\.[0-9]{1,3}\.[0-9]{1,3}", fullmatch=True),
    st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._:-]{0,12}[A-Za-z0-9])?", fullmatch=True),
)
NUMBERS = st.one_of(st.integers(-3, 5000).map(str), st.integers(1, 6000).map(lambda digits: "9" * digits))
TERMS = st.lists(
    st.one_of(
        st.text(alphabet="0123456789-/,!@[].an ", max_size=14),
        NUMBERS,
        st.tuples(NUMBERS, NUMBERS).map(lambda t: f"10.0.0.[{t[0]}-{t[1]}]"),
        st.sampled_from(["@all", "@failed", "@workers", "!@master", "1-3", "10.0.0.[1-3]", "!2"]),
        st.text(max_size=5),
    ),
    max_size=4,
).map(",".join)


@given(TERMS)
def test_whatever_stands_in_a_host_set_it_names_hosts_or_is_refused(expression: Any) -> None:
    """Never another exception, never nothing, never a host twice or out of order, never a screenful."""
    try:
        chosen = select(HOSTS, expression, failed=["10.0.0.5"])
    except ConfigError as e:
        assert 500 > len(str(e))
        return

    assert chosen
    assert sorted(set(chosen)) == list(chosen)


@given(st.lists(NAMES, min_size=1, max_size=12, unique=True), st.data())
def test_what_fold_writes_select_reads(names: Any, data: st.DataObject) -> None:
    """Whatever the hosts of a hostfile are called, a folded name can be pasted back into --hosts."""
    try:
        hosts = parse_hostfile("".join(f"{n} slots=1\n" for n in names), "hosts")
    except ConfigError:
        return
    some = [h for h in hosts if data.draw(st.booleans())] or list(hosts)

    assert some == list(select(hosts, fold(h.address for h in some)))


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("10.0.0.1:8", "10.0.0.1 slots=8"),
        ("10.0.0.1:8 slots=8", "10.0.0.1 slots=8"),
        ("gpu1:4", "gpu1 slots=4"),
        ("10.0.0.1 8", "10.0.0.1 slots=8"),
        ("10.0.0.1 :8", "10.0.0.1 slots=8"),
        ("10.0.0.1 slot=8", "10.0.0.1 slots=8"),
        ("10.0.0.1 slots 8", "10.0.0.1 slots=8"),
        ("10.0.0.1 slots=8 max_slots=8", "10.0.0.1 slots=8"),
        ("ubuntu@10.0.0.1 slots=8", "10.0.0.1 slots=8"),
        ("ubuntu@10.0.0.1:8", "10.0.0.1 slots=8"),
        ("10.0.0.1 slots=eight", ""),
        ("10.0.0.1:0", ""),
        ("10.0.0.1:0 slots=99999999", ""),
        ("a b c", ""),
    ],
)
def test_a_hint_is_a_line_that_is_taken(line: str, hint: str) -> None:
    """Where it is clear what was meant, the line to write is given, and it works as it stands."""
    with pytest.raises(ConfigError) as refused:
        parse_hostfile(f"m slots=1\n{line}\n", "hosts")
    found = re.search(r"write '(.*)'$", str(refused.value))

    assert hint == (found[1] if found else "")
    if hint:
        assert 2 == len(parse_hostfile(f"m slots=1\n{hint}\n", "hosts"))


def test_the_example_for_a_host_without_slots_is_taken() -> None:
    """As it stands."""
    for line in ("10.0.0.1", "gpu1", "fe80::1"):
        with pytest.raises(ConfigError) as refused:
            parse_hostfile(line, "hosts")
        example = re.search(r"for example '(.*)'", str(refused.value))
        assert example
        assert [8] == [h.slots for h in parse_hostfile(example[1], "hosts")]


def test_names_that_differ_in_case_are_one_host() -> None:
    """As they are for every resolver."""
    with pytest.raises(ConfigError, match="IP-10-0-0-1 is already on line 1"):
        parse_hostfile("ip-10-0-0-1 slots=1\nIP-10-0-0-1 slots=1\n", "hosts")


@pytest.mark.parametrize(
    "text", [b"\xef\xbb\xbfa slots=1\n", b"# caf\xe9\na slots=1 # J\xe9r\xf4me\n", b"a slots=1\r\n"]
)
def test_a_hostfile_of_any_encoding_is_read(text: bytes, tmp_path: Path) -> None:
    """Its comments may hold any byte, and an editor may have put a mark before it."""
    (tmp_path / "hosts").write_bytes(text)

    assert ["a"] == [h.address for h in read_hostfile(tmp_path / "hosts")]
