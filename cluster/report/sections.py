"""Sections of a job's page with facts and tables, each built from the job's facts."""

import shlex
from collections.abc import Mapping

from cluster.hostset import fold
from cluster.jobs.client.show import code_in_words, colour_of, cost_in_words, duration, launched_by
from cluster.jobs.curves.metrics import Measured
from cluster.jobs.master.facts import JobFacts
from cluster.jobs.record import JobView
from cluster.jobs.state import JobState
from cluster.launch.mpirun import shown
from cluster.report.chart import number
from cluster.report.markup import Markup, facts, joined, table, tag
from cluster.ssh.secret_variables import masked
from cluster.terminal import Colour, counted

_KIND: Mapping[Colour | None, str] = {"red": "bad", "yellow": "warn", "green": "good"}


def outcome(job: JobView) -> str:
    """Describe the job's state, duration and useful share of time in a sentence."""
    words = {
        JobState.QUEUED: "It waits for its turn",
        JobState.STARTING: "It starts",
        JobState.RUNNING: "It goes on",
        JobState.STOPPING: "It is being stopped",
        JobState.HEALING: "It heals: its next attempt is being prepared",
        JobState.SUCCEEDED: "It succeeded",
        JobState.FAILED: "It failed",
        JobState.STOPPED: "It was stopped",
        JobState.LOST: "It is lost: whoever watched it is gone",
    }
    sentence = words[job.state]
    if job.account and job.account.ettr is not None:
        attempts = counted(len(job.attempts), "attempt")
        sentence += f", {'after' if job.state.is_over else 'for'} {duration(job.account.total.wall_s)} in {attempts}"
        least = "at least " if job.account.total.unknown_s else ""
        sentence += f"; {least}{100 * job.account.ettr:.1f} % of that time was useful (ETTR)"
    return sentence + "."


def head(found: JobFacts) -> Markup:
    """Return the head of the page: what the job is, and how it goes or ended."""
    job = found.view
    asked, status = job.job, job.status
    p = job.progress
    step = f"{p.step:,}" + (f" of {asked.plan.steps:,}" if asked.plan.steps else "") if p else ""
    rows = {
        "state": tag("strong", job.state, class_=f"state {_KIND.get(colour_of(job), 'quiet')}"),
        "cause": status.cause,
        "warnings": "; ".join(status.warnings),
        "left behind": "; ".join(status.left),
        "cost": cost_in_words(job),
        "results": str(job.results or ""),
        "started": asked.created,
        "last attempt": f"{status.started} to {status.ended}" if status.ended else status.started,
        "step": step,
        "scores": ", ".join(scores(found.measured)),
        "ranks": f"{asked.np} on {fold(h.address for h in asked.hosts)}" if asked.hosts else str(asked.np),
        "owner": job.owner,
        "folder": job.folder,
    }
    return joined(tag("p", outcome(job), class_="lead"), facts(rows))


def scores(measured: Measured) -> list[str]:
    """Return the last scores of its evaluations, in words."""
    found = []
    for name, label, unit in (
        ("top1", "top-1", " %"),
        ("top5", "top-5", " %"),
        ("box_ap", "box AP", ""),
        ("mask_ap", "mask AP", ""),
    ):
        if curve := measured.curve("eval", name):
            found.append(f"{label} {number(curve.newest.mean)}{unit}")
    return found


def hosts(found: JobFacts) -> Markup | None:
    """Return the table of hosts with their health; None if there are none."""
    rows: list[list[object]] = []
    for one in found.hosts:
        health = "; ".join(one.findings) or ("nothing found" if one.looked else "not looked at")
        health = ("unfit: " if one.is_unfit else "") + health + (f" ({one.looked})" if one.looked else "")
        rows.append([one.address, "; ".join(one.ranks), health, "; ".join(one.failures) or "none"])
    return (
        table("Hosts of the job", ["host", "ranks", "health, last look", "failures on record"], rows) if rows else None
    )


def checkpoints(found: JobFacts) -> Markup | None:
    """Return the table of the newest checkpoints and the best; None if there are none."""
    if not found.checkpoints:
        return None
    rows: list[list[object]] = [
        [f"{c.step:,}", c.time, f"{c.bytes / 1e6:,.1f}", str(c.attempt or ""), "best" if c.is_best else ""]
        for c in found.checkpoints
    ]
    return table(
        "Checkpoints that are in its folder",
        ["step", "written", "MB", "attempt", ""],
        rows,
        numbers=frozenset({2, 3}),
    )


def pictures(found: JobFacts) -> Markup | None:
    """Return the small pictures that a detector drew; None if there are none."""
    if not found.pictures:
        return None
    images = (
        tag(
            "figure",
            tag("img", src=f"data:{p.media};base64,{p.content}", alt=f"Picture {p.name} of the job's folder"),
            tag("figcaption", p.name),
        )
        for p in found.pictures
    )
    left = f"{counted(found.pictures_left, 'more picture')} in {found.view.folder}/pictures"
    note = tag("p", left, class_="note") if found.pictures_left else None
    return joined(tag("div", *images, class_="pictures"), note)


def command(found: JobFacts) -> Markup:
    """Return the command, versions and code, with secrets masked."""
    asked = found.view.job
    rows = {
        "code": code_in_words(found.view),
        "launched by": launched_by(found.view),
        "packages": asked.spec.packages.option if asked.spec.packages else "",
        "launch profile": asked.plan.profile,
        "variables given": ", ".join(asked.spec.environment),
        "goes on with": counted(asked.fewest_np, "rank") + " at least" if asked.spec.heal else "one attempt only",
    }
    versions: list[list[object]] = [[name, version] for name, version in sorted(asked.plan.versions.items())]
    line = shown(masked(asked.plan.mpirun)) if asked.plan.mpirun else ""
    return joined(
        tag("pre", shlex.join(masked(asked.plan.command)), tabindex="0", aria_label="The command of each rank"),
        tag(
            "details", tag("summary", f"mpirun's command line, attempt {asked.attempt}"), tag("pre", line, tabindex="0")
        )
        if line
        else None,
        facts(rows),
        table("Versions on the master", ["package", "version"], versions) if versions else None,
    )


def difference(found: JobFacts) -> Markup | None:
    """Return the diff of the job's code from its revision, or None."""
    if not found.difference:
        return None
    left = f"{found.difference_left:,} more bytes: code.diff in the job's folder" if found.difference_left else None
    return joined(
        tag("pre", found.difference, class_="diff", tabindex="0", aria_label="Difference of the code"),
        tag("p", left, class_="note") if left else None,
    )


def tail(found: JobFacts) -> Markup | None:
    """Return the last lines of the log; None if there are none."""
    if not found.tail:
        return None
    return tag("pre", "\n".join(found.tail), tabindex="0", aria_label="The last lines of the log")
