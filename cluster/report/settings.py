"""Settings and outcomes of several jobs, and those in which they differ."""

import hashlib
from collections.abc import Mapping, Sequence

from cluster.hostset import fold
from cluster.jobs.client.show import code_in_words, duration, launched_by
from cluster.jobs.master.facts import JobFacts
from cluster.report.chart import number
from cluster.ssh.secret_variables import masked

Row = tuple[str, tuple[str, ...]]
"""A name, and its value in each job; "" where a job has none."""


def settings(found: Sequence[JobFacts]) -> list[Row]:
    """Return the settings in which these jobs differ."""
    return _differing([_settings(one) for one in found])


def outcomes(found: Sequence[JobFacts]) -> list[Row]:
    """Return all outcomes of the jobs, equal ones included."""
    each = [_outcome(one) for one in found]
    names = dict.fromkeys(name for one in each for name in one)
    return [(name, tuple(one.get(name, "") for one in each)) for name in names]


def flags_of(command: Sequence[str]) -> dict[str, str]:
    """Return a command line's flags with their values, and under "command" the words without a flag.

    A flag's value is what follows it up to the next flag; one that is given twice has both.
    """
    found: dict[str, list[str]] = {}
    words: list[str] = []
    name = ""
    for word in command:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word.partition("=")
            found.setdefault(name, [])
            if equals:
                found[name].append(value)
                name = ""
        elif name:
            found[name].append(word)
        else:
            words.append(word)
    flags = {flag: " ".join(values) or "given" for flag, values in found.items() if flag != "--job-dir"}
    return {"command": " ".join(words), **flags}


def _settings(found: JobFacts) -> dict[str, str]:
    asked = found.view.job
    plain = {
        "program": asked.spec.name,
        "code": code_in_words(found.view),
        "code's difference": _difference(found),
        "in its folder": asked.spec.below,
        "launched by": launched_by(found.view),
        "ranks": str(asked.plan.whole_np or asked.np),
        "hosts": fold(h.address for h in (asked.plan.whole_hosts or asked.hosts)),
        "least ranks": str(asked.fewest_np),
        "launch profile": asked.plan.profile,
        "heals": "yes" if asked.spec.heal else "no",
        "packages": asked.spec.packages.option if asked.spec.packages else "",
        "variables given": ", ".join(sorted(asked.spec.environment)),
    }
    return {**flags_of(masked(asked.plan.command)), **plain, **dict(asked.plan.versions)}


def _difference(found: JobFacts) -> str:
    """Return an identifier of the code's diff, equal for equal diffs."""
    size = len(found.difference.encode()) + found.difference_left
    return f"{hashlib.sha256(found.difference.encode()).hexdigest()[:12]}, {size:,} bytes" if size else ""


def _outcome(found: JobFacts) -> dict[str, str]:
    job, measured = found.view, found.measured
    account = job.account
    told = {
        "state": str(job.state),
        "cause": job.status.cause,
        "step": f"{job.progress.step:,}" if job.progress else "",
        "attempts": str(len(job.attempts) or job.status.attempt),
        "time": duration(account.total.wall_s) if account else "",
        "useful (ETTR)": f"{100 * account.ettr:.1f} %" if account and account.ettr is not None else "",
    }
    if found.view.usd is not None:
        told["cost, USD"] = f"{found.view.usd:,.2f}"
    for label, kind, name, unit in (
        ("loss, last", "train", "loss", ""),
        ("validation loss, last", "eval", "loss", ""),
        ("top-1, last", "eval", "top1", " %"),
        ("top-1, best", "eval", "top1", " %"),
        ("box AP, last", "eval", "box_ap", ""),
        ("mask AP, last", "eval", "mask_ap", ""),
        ("images/s, mean", "train", "images_per_s", ""),
    ):
        if curve := measured.curve(kind, name):
            best, mean = label.endswith("best"), label.endswith("mean")
            value = curve.highest.largest if best else curve.mean if mean else curve.newest.mean
            told[label] = number(value) + unit
    return told


def _differing(each: Sequence[Mapping[str, str]]) -> list[Row]:
    names = dict.fromkeys(name for one in each for name in one)
    rows = [(name, tuple(one.get(name, "") for one in each)) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]
