"""Judges of `nvidia-smi -q -x`: driver, number of GPUs, memory, clocks, heat, power, NVSwitch fabric."""

from collections.abc import Iterator

from cluster.health.check import About, Answer, PartlyRead
from cluster.health.known_faults import failure_of_smi
from cluster.health.smi import (
    Gpu,
    attached,
    beside_report,
    each_gpu,
    field_text,
    gpus,
    has,
    measure,
    must,
    number,
    one_of,
    part,
    problem,
    silent_field,
    text,
)
from cluster.health.verdict import Problem, Severity, Unreadable, unknown
from cluster.health.xid import HANGS
from cluster.ssh.onhost.telling_line import telling_line
from cluster.terminal import counted

SLOW_S = 5.0  # nvidia-smi answers in 1 to 3 s on eight GPUs with persistence mode on
RETIRED_PAGES_MOST = 60  # NVIDIA, dynamic page retirement: more are grounds for a return
REPAIRS = ("channel_repair_pending", "tpc_repair_pending")  # newer drivers report both
PENDING = {  # field of a pending repair, and the repair's name
    "remapped_row_pending": "row remap",
    "pending_retirement": "page retirement",
    "pending_blacklist": "page retirement",
    "channel_repair_pending": "channel repair",
    "tpc_repair_pending": "TPC repair",
}


def slow_driver(answer: Answer) -> Problem | None:
    """Return a problem to watch if nvidia-smi answered slowly. A slow answer does not mean that the driver hangs."""
    if answer.seconds <= SLOW_S:
        return None
    off = "<persistence_mode>Disabled" in answer.out
    return Problem(
        check="gpu-driver",
        what=f"nvidia-smi is slow{': persistence mode is off' * off}: it answered after {answer.seconds:.0f} s",
        means="without persistence mode every program loads the driver anew; NVLinks and processes were not looked at",
        verdict=Severity.WATCH,
        do="turn persistence mode on" if off else "turn persistence mode on, where it is off",
        command="inv setup --settings --hosts {ranks}",
        unfit=False,
    )


def driver_hangs(answer: Answer, about: About) -> Problem:
    """Return the problem of an nvidia-smi that timed out. The kernel log, which was read first, may explain it."""
    known = next((w for w in HANGS if w in about.kernel_log), None)
    means = (
        f"the kernel log says why: {known.strip('): ,')}"
        if known
        else "the driver hangs; so would every job that asks it"
    )
    stuck = ", and its process cannot be ended" if answer.stuck else ""
    return problem(
        "gpu-driver", f"nvidia-smi did not answer within {answer.seconds:.0f} s{stuck}", means, Severity.REBOOT
    )


def driver_fails(answer: Answer, about: About) -> list[Problem]:
    """Read nvidia-smi's output without a report: a known fault, or one to look up. The host is unfit."""
    said = f"{answer.out}\n{answer.err}"
    if known := failure_of_smi(answer.code, said):
        fault, line = known
        return [fault.problem("gpu-driver", f"nvidia-smi: {line}"[:160], unfit=True)]
    if answer.code in (0, None):
        raise Unreadable(f"no report: {telling_line(said)[:60]!r}")
    return [
        unknown(
            "gpu-driver",
            f"nvidia-smi failed: {telling_line(said) or f'it exited {answer.code}'}"[:160],
            means="no program may find its GPUs",
            command="inv run --hosts {ranks} -- nvidia-smi",
            unfit=True,
        )
    ]


def count_problems(log: str, about: About) -> list[Problem]:
    """Compare the number of GPUs with the instance type, the PCI bus and the hostfile's slots.

    A GPU that is divided (MIG) is a problem, too.
    """
    number = attached(log)
    expected = about.instance.gpus if about.instance else None
    problems = [
        Problem(
            check="gpu-count",
            what=f"GPU {i} is divided (MIG)",
            verdict=Severity.RESTART_JOB,
            means="a rank would get a part of a GPU",
            do="make it whole",
            command="inv run --hosts {ranks} --sudo -- nvidia-smi -mig 0",
        )
        for i, gpu in gpus(log)
        if field_text(gpu, "mig_mode", "current_mig") == "Enabled"
    ]
    if expected is not None and number < expected:
        problems.append(
            problem("gpu-count", f"{counted(number, 'GPU')}, its type has {expected}", "a GPU is lost", Severity.REBOOT)
        )
    elif number < about.gpus_on_bus:
        what = f"{counted(number, 'GPU')}, the PCI bus has {about.gpus_on_bus}"
        problems.append(problem("gpu-count", what, "the driver lost a GPU", Severity.REBOOT))
    elif failure_of_smi(None, beside_report(log)):
        return problems  # a GPU that the driver could not open is not listed: gpu-driver names it
    elif number != about.host.slots > 0:  # a master of 0 slots trains on none of its GPUs
        problems.append(
            Problem(
                check="gpu-count",
                what=f"{counted(number, 'GPU')}, but slots={about.host.slots} in the hostfile",
                means="ranks would share a GPU, or GPUs would idle",
                do=f"say slots={number} there",
                verdict=Severity.RESTART_JOB,
                command="edit the hosts file, then: inv health --hosts {ranks}",
            )
        )
    return problems


def answer_problems(log: str, about: About) -> list[Problem]:
    """Return the listed GPUs that do not answer the driver, and those that it could not open."""
    missing = attached(log) - len(list(gpus(log)))
    problems = _silent_gpus(log, about)
    if known := failure_of_smi(None, beside_report(log)):
        fault, line = known
        problems.append(fault.problem("gpu-driver", f"nvidia-smi: {line}"[:160]))
    elif missing:
        what = f"nvidia-smi reports {attached(log) - missing} of {counted(attached(log), 'GPU')}"
        problems.append(problem("gpu-driver", what, "the driver lost contact with the others", Severity.REBOOT))
    return problems


def _silent_gpus(log: str, about: About) -> list[Problem]:
    try:
        return _silent_gpu(log, about)
    except PartlyRead as e:
        if e.is_told:
            return e.problems
        raise


@each_gpu
def _silent_gpu(i: int, gpu: Gpu) -> Iterator[Problem]:
    """Report a GPU if the driver writes into its fields that it gets no answer."""
    if silent := silent_field(gpu):
        field, words, verdict = silent
        means = "it takes no work before that" if verdict is Severity.RESET_GPU else "the driver lost contact with it"
        yield problem("gpu-driver", f"GPU {i} does not tell its {field}: {words}", means, verdict)
    must(gpu, "temperature/gpu_temp")
    one_of(_power(gpu), "power_draw", "instant_power_draw", "average_power_draw")


SLOWED_BY = {
    "hw_thermal_slowdown": "heat",
    "hw_power_brake_slowdown": "the power supply",
    "sw_thermal_slowdown": "heat",
    "hw_slowdown": "the hardware",
}


@each_gpu
def throttle_problems(i: int, gpu: Gpu) -> Iterator[Problem]:
    """Report clocks slowed down by heat or power. The verdict is only to watch: the job continues, but slower."""
    fields = part(gpu, "clocks_event_reasons", "clocks_throttle_reasons")  # the second is its name before driver 535
    reasons = {name: [f for f in fields if f.tag.endswith(f"reason_{name}")] for name in SLOWED_BY}
    if wrong := [name for name, found in reasons.items() if len(found) != 1]:
        raise Unreadable(f"{len(reasons[wrong[0]])} times the reason {wrong[0]}")
    why = dict.fromkeys(said for name, said in SLOWED_BY.items() if (reasons[name][0].text or "").strip() == "Active")
    if why:
        what = f"GPU {i}: slowed down by {', '.join(why)}"
        yield problem("gpu-throttle", what, "all ranks wait for the slowest", Severity.WATCH, unfit=False)


@each_gpu
def temperature_problems(i: int, gpu: Gpu) -> Iterator[Problem]:
    """Compare with the GPU's own limits. Newer drivers report the distance from a limit instead."""
    heat = part(gpu, "temperature")

    def degrees(name: str) -> float | None:
        return measure(must(heat, name), " C")

    now = degrees("gpu_temp")
    if now is None:
        raise Unreadable("no temperature in <gpu_temp>")
    hot = ""
    if heat.find("gpu_temp_slow_tlimit_threshold") is not None:
        left, slow_left = degrees("gpu_temp_tlimit"), degrees("gpu_temp_slow_tlimit_threshold")
        is_slow = left is not None and slow_left is not None and left <= slow_left
    else:
        slow = degrees("gpu_temp_slow_threshold")
        is_slow = slow is not None and now >= slow
    if is_slow:
        hot = f"{now:.0f} C, where it slows down"
    elif _tells_memory_heat(heat):
        memory, most = degrees("memory_temp"), degrees("gpu_temp_max_mem_threshold")
        if memory is not None and most is not None and memory >= most:
            hot = f"memory at {memory:.0f} C, its limit"
    if hot:
        yield problem("gpu-temperature", f"GPU {i}: {hot}", "its cooling fails", Severity.REPLACE)


def _tells_memory_heat(heat: Gpu) -> bool:
    """Return True if the memory's temperature and limit are in degrees. Newer drivers report a distance."""
    names = ("memory_temp", "gpu_temp_max_mem_threshold")
    return heat.find("gpu_temp_max_mem_tlimit_threshold") is None and any(heat.find(n) is not None for n in names)


def _power(gpu: Gpu) -> Gpu:
    return part(gpu, "gpu_power_readings", "power_readings")  # the second is its name before driver 535


@each_gpu
def power_problems(i: int, gpu: Gpu) -> Iterator[Problem]:
    """Report a power limit below the GPU's default: the GPU would be slower than the others."""
    power = _power(gpu)
    limit = measure(one_of(power, "current_power_limit", "enforced_power_limit", "power_limit"), " W")
    usual = measure(must(power, "default_power_limit"), " W")
    if limit is not None and usual is not None and limit < usual:
        yield Problem(
            check="gpu-power",
            what=f"GPU {i}: limited to {limit:.0f} W of {usual:.0f} W",
            means="all ranks wait for the slowest",
            do="give it its default back",
            unfit=False,
            verdict=Severity.WATCH,
            command=f"inv run --hosts {{ranks}} --sudo -- nvidia-smi -pl {usual:.0f}",
        )


def persistence_problems(log: str, about: About) -> list[Problem]:
    """Report persistence mode that is off: each process that uses the driver then takes seconds to load it."""
    if not [i for i, gpu in gpus(log) if must(gpu, "persistence_mode") == "Disabled"]:
        return []
    return [
        Problem(
            check="gpu-persistence",
            what="persistence mode is off",
            unfit=False,
            verdict=Severity.WATCH,
            means="the driver is loaded anew by every process",
            do="turn it on",
            command="inv run --hosts {ranks} --sudo -- nvidia-smi -pm 1",
        )
    ]


@each_gpu
def fabric_problems(i: int, gpu: Gpu) -> Iterator[Problem]:
    """Report a GPU that has not joined the NVSwitch fabric. Drivers before 525 do not report this."""
    state, status = field_text(gpu, "fabric", "state"), field_text(gpu, "fabric", "status")
    if state == "In Progress" or (state == "Completed" and status not in ("Success", "N/A", None)):
        yield Problem(
            check="gpu-fabric",
            what=f"GPU {i} has not joined the NVSwitch fabric: {state}, {status}",
            means="CUDA will refuse to start (error 802)",
            verdict=Severity.REBOOT,
            do="restart the fabric manager",
            command="inv run --hosts {ranks} --sudo -- systemctl restart nvidia-fabricmanager",
        )


@each_gpu
def ecc_problems(i: int, gpu: Gpu) -> Iterator[Problem]:
    """Report uncorrectable memory errors since the driver was loaded, and memory that is beyond repair."""
    errors, now = part(gpu, "ecc_errors"), part(gpu, "ecc_errors/volatile")
    names, is_over = _ecc_counters(now), False
    bad = sum(number(must(now, name)) for name in names)
    if bad:
        what = f"GPU {i}: {bad} uncorrectable memory errors"
        yield problem("gpu-ecc", what, "results may be wrong", Severity.RESET_GPU)
    if "sram_uncorrectable_parity" in names:
        is_over = must(errors, "aggregate/sram_threshold_exceeded") == "Yes"
    if is_over or text(errors, "unrepairable_memory") == "Yes":
        yield problem("gpu-ecc", f"GPU {i}: its memory is beyond repair", "errors will come back", Severity.REPLACE)


def _ecc_counters(now: Gpu) -> tuple[str, ...]:
    """Return the names of the uncorrectable-error counters, which depend on the driver and GPU generation."""
    if now.find("single_bit") is not None or now.find("double_bit") is not None:  # before Ampere
        return ("double_bit/total",)
    split = ("sram_uncorrectable_parity", "sram_uncorrectable_secded")
    is_split = any(now.find(name) is not None for name in split)
    return (*(split if is_split else ("sram_uncorrectable",)), "dram_uncorrectable")


@each_gpu
def repair_problems(i: int, gpu: Gpu) -> Iterator[Problem]:
    """Report page retirements and row remaps that wait for a reset, or for which no reserve is left."""
    if field_text(gpu, "remapped_rows", "remapped_row_failure") == "Yes":
        what = f"GPU {i}: a memory row could not be remapped"
        yield problem("gpu-repair", what, "the GPU has no reserve left", Severity.REPLACE)
    pending = {field: field_text(gpu, "retired_pages", field) for field in ("pending_retirement", "pending_blacklist")}
    pending["remapped_row_pending"] = field_text(gpu, "remapped_rows", "remapped_row_pending")
    if any(has(gpu, f"ecc_errors/{field}") for field in REPAIRS):
        pending |= {field: field_text(gpu, "ecc_errors", field) for field in REPAIRS}
    waits = [PENDING[field] for field in PENDING if pending.get(field) == "Yes"]
    if waits:
        what = f"GPU {i}: a {waits[0]} is pending"
        yield problem("gpu-repair", what, "it becomes active at a reset", Severity.RESET_GPU)
    kinds = ("multiple_single_bit_retirement", "double_bit_retirement")
    retired = sum(number(field_text(gpu, "retired_pages", f"{kind}/retired_count") or "N/A") for kind in kinds)
    if retired >= RETIRED_PAGES_MOST:
        limit = f"{RETIRED_PAGES_MOST} are NVIDIA's limit"
        yield problem("gpu-repair", f"GPU {i}: {counted(retired, 'page')} retired", limit, Severity.REPLACE)
    banks = field_text(gpu, "remapped_rows", "row_remapper_histogram/row_remapper_histogram_none")
    if number(banks or "N/A", "bank(s)"):
        what = f"GPU {i}: a memory bank has no spare rows left"
        yield problem("gpu-repair", what, "its next fault cannot be repaired", Severity.WATCH, unfit=False)


@each_gpu
def recovery_problems(i: int, gpu: Gpu) -> Iterator[Problem]:
    """Report a reset or a reboot that the driver requests."""
    asked = text(gpu, "gpu_recovery_action") or ""
    if not asked and has(gpu, "gpu_power_readings") and not has(gpu, "gpu_reset_status"):
        raise Unreadable("no <gpu_recovery_action>, no <gpu_reset_status>")  # drivers since 535 report one of them
    wants_reset = asked not in ("", "None", "N/A") or "Yes" in (
        field_text(gpu, "gpu_reset_status", "reset_required"),
        field_text(gpu, "gpu_reset_status", "drain_and_reset_recommended"),
    )
    if "reboot" in asked.lower() or wants_reset:
        verdict = Severity.REBOOT if "reboot" in asked.lower() else Severity.RESET_GPU
        what = f"GPU {i}: the driver asks for: {asked or 'Reset'}"
        yield problem("gpu-recovery", what, "its own advice", verdict)


def needs_no_reset(log: str, about: About) -> bool:
    """Return True if the driver reports for every GPU that no reset is pending and no error is left.

    The kernel log keeps an Xid after the reset that it required. A driver without reset fields proves nothing.
    """
    judges = (ecc_problems, repair_problems, recovery_problems)
    if any(silent_field(gpu) for _, gpu in gpus(log)) or attached(log) != len(list(gpus(log))):
        return False
    says_none = [_asks_for_nothing(gpu) for _, gpu in gpus(log)]
    return bool(says_none) and all(says_none) and not any(p.unfit for judge in judges for p in judge(log, about))


def _asks_for_nothing(gpu: Gpu) -> bool:
    asked, required = text(gpu, "gpu_recovery_action"), text(gpu, "gpu_reset_status/reset_required")
    return asked == "None" if asked else required == "No"
