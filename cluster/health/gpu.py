"""Judges of `nvidia-smi -q -x`: driver, number of GPUs, memory, clocks, heat, power, PCIe, NVSwitch fabric."""

from collections.abc import Iterator

from cluster.health.check import About, Answer
from cluster.health.smi import NO_ANSWER, Gpu, degrees, each_gpu, gpus, must, number, part, problem, text, watts
from cluster.health.verdict import Problem, Unreadable, Verdict
from cluster.health.xid import HANGS

RETIRED_PAGES_MOST = 60  # NVIDIA, dynamic page retirement: more are grounds for a return
PENDING = {  # where a repair that waits is told, and its name
    "remapped_rows/remapped_row_pending": "row remap",
    "retired_pages/pending_retirement": "page retirement",
    "retired_pages/pending_blacklist": "page retirement",
    "ecc_errors/channel_repair_pending": "channel repair",
    "ecc_errors/tpc_repair_pending": "TPC repair",
}


def driver_hangs(answer: Answer, about: About) -> Problem:
    """What it means that nvidia-smi did not come back: the kernel log was read first and may say why."""
    known = next((w for w in HANGS if w in about.kernel_log), None)
    means = (
        f"the kernel log says why: {known.strip('): ,')}"
        if known
        else "the driver hangs; so would every job that asks it"
    )
    stuck = ", and its process cannot be ended" if answer.stuck else ""
    return problem(
        "gpu-driver", f"nvidia-smi did not answer within {answer.seconds:.0f} s{stuck}", means, Verdict.REBOOT
    )


def count_problems(log: str, about: About) -> list[Problem]:
    """GPUs against the instance type and the hostfile's slots; parts of a GPU (MIG) count as a mistake."""
    number = len(list(gpus(log)))
    expected = about.instance.gpus if about.instance else None
    problems = [
        Problem(
            check="gpu-count",
            what=f"GPU {i} is divided (MIG)",
            verdict=Verdict.RESTART_JOB,
            means="a rank would get a part of a GPU",
            do="make it whole",
            command="inv run --hosts {ranks} --sudo -- nvidia-smi -mig 0",
        )
        for i, gpu in gpus(log)
        if text(gpu, "mig_mode/current_mig") == "Enabled"
    ]
    if expected is not None and number < expected:
        problems.append(
            problem("gpu-count", f"{number} GPUs, its type has {expected}", "a GPU is lost", Verdict.REBOOT)
        )
    elif number != about.host.slots:
        problems.append(
            Problem(
                check="gpu-count",
                what=f"{number} GPUs, but slots={about.host.slots} in the hostfile",
                means="ranks would share a GPU, or GPUs would idle",
                do=f"say slots={number} there",
                verdict=Verdict.RESTART_JOB,
                command="edit the hosts file, then: inv health --hosts {ranks}",
            )
        )
    return problems


@each_gpu
def answer_problems(i: int, gpu: Gpu) -> Iterator[Problem]:
    """GPUs that the driver lists but cannot ask any more."""
    field = next((f for f in gpu.iter() if f.text and f.text.strip() in NO_ANSWER), None)
    if field is not None and field.text:
        what = f"GPU {i} does not tell its {field.tag}: {field.text.strip()}"
        yield problem("gpu-driver", what, "the driver lost contact with it", Verdict.REBOOT)


SLOWED_BY = {
    "hw_thermal_slowdown": "heat",
    "hw_power_brake_slowdown": "the power supply",
    "sw_thermal_slowdown": "heat",
    "hw_slowdown": "the hardware",
}


@each_gpu
def throttle_problems(i: int, gpu: Gpu) -> Iterator[Problem]:
    """Clocks held down by heat or power: watched, as the job goes on, only slower."""
    fields = part(gpu, "clocks_event_reasons", "clocks_throttle_reasons")  # the second is its name before driver 535
    active = [f.tag for f in fields if (f.text or "").strip() == "Active"]
    why = dict.fromkeys(
        said for name, said in SLOWED_BY.items() if any(tag.endswith(f"reason_{name}") for tag in active)
    )
    if why:
        what = f"GPU {i}: slowed down by {', '.join(why)}"
        yield problem("gpu-throttle", what, "all ranks wait for the slowest", Verdict.WATCH, unfit=False)


@each_gpu
def temperature_problems(i: int, gpu: Gpu) -> Iterator[Problem]:
    """Against the GPU's own limits; newer drivers say how far it is from them instead."""
    heat = part(gpu, "temperature")
    now, slow = degrees(heat, "gpu_temp"), degrees(heat, "gpu_temp_slow_threshold")
    left, slow_left = degrees(heat, "gpu_temp_tlimit"), degrees(heat, "gpu_temp_slow_tlimit_threshold")
    memory, memory_most = degrees(heat, "memory_temp"), degrees(heat, "gpu_temp_max_mem_threshold")
    if now is None:
        raise Unreadable("no <gpu_temp>")
    hot = ""
    if (slow is not None and now >= slow) or (left is not None and slow_left is not None and left <= slow_left):
        hot = f"{now:.0f} C, where it slows down"
    elif memory is not None and memory_most is not None and memory >= memory_most:
        hot = f"memory at {memory:.0f} C, its limit"
    if hot:
        yield problem("gpu-temperature", f"GPU {i}: {hot}", "its cooling fails", Verdict.REPLACE)


@each_gpu
def power_problems(i: int, gpu: Gpu) -> Iterator[Problem]:
    """A power limit below the GPU's default: it would be slower than the others."""
    power = part(gpu, "gpu_power_readings", "power_readings")  # the second is its name before driver 535
    names = ("current_power_limit", "enforced_power_limit", "power_limit")
    limit = next((w for w in (watts(power, name) for name in names) if w), None)
    usual = watts(power, "default_power_limit")
    if limit is not None and usual is not None and limit < usual:
        yield Problem(
            check="gpu-power",
            what=f"GPU {i}: limited to {limit:.0f} W of {usual:.0f} W",
            means="all ranks wait for the slowest",
            do="give it its default back",
            unfit=False,
            verdict=Verdict.WATCH,
            command=f"inv run --hosts {{ranks}} --sudo -- nvidia-smi -pl {usual:.0f}",
        )


def persistence_problems(log: str, about: About) -> list[Problem]:
    """Without it the driver leaves and comes back with every process that asks it: seconds each time."""
    if not [i for i, gpu in gpus(log) if must(gpu, "persistence_mode") == "Disabled"]:
        return []
    return [
        Problem(
            check="gpu-persistence",
            what="persistence mode is off",
            unfit=False,
            verdict=Verdict.WATCH,
            means="the driver is loaded anew by every process",
            do="turn it on",
            command="inv run --hosts {ranks} --sudo -- nvidia-smi -pm 1",
        )
    ]


@each_gpu
def pcie_problems(i: int, gpu: Gpu) -> Iterator[Problem]:
    """Lanes lost always count; the speed only while the GPU works, as it drops at rest."""
    link = part(gpu, "pci/pci_gpu_link_info")
    width, most = (number(link.find(f"link_widths/{which}_link_width"), "x") for which in ("current", "max"))
    speed, fastest = (number(link.find(f"pcie_gen/{which}_link_gen")) for which in ("current", "max"))
    means = "its input comes slower"
    if width < most:
        yield problem("gpu-pcie", f"GPU {i}: {width} of {most} PCIe lanes", means, Verdict.REBOOT)
    elif speed < fastest and text(gpu, "performance_state") == "P0":
        what = f"GPU {i}: PCIe generation {speed} of {fastest} under load"
        yield problem("gpu-pcie", what, means, Verdict.REBOOT, unfit=False)


@each_gpu
def fabric_problems(i: int, gpu: Gpu) -> Iterator[Problem]:
    """Whether each GPU joined the NVSwitch fabric; drivers before 525 do not say."""
    state, status = text(gpu, "fabric/state"), text(gpu, "fabric/status")
    if state == "In Progress" or (state == "Completed" and status not in ("Success", "N/A", None)):
        yield Problem(
            check="gpu-fabric",
            what=f"GPU {i} has not joined the NVSwitch fabric: {state}, {status}",
            means="CUDA will refuse to start (error 802)",
            verdict=Verdict.REBOOT,
            do="restart the fabric manager",
            command="inv run --hosts {ranks} --sudo -- systemctl restart nvidia-fabricmanager",
        )


@each_gpu
def ecc_problems(i: int, gpu: Gpu) -> Iterator[Problem]:
    """Memory errors that could not be corrected since the driver was loaded, and the driver's own verdict on them."""
    errors, now = part(gpu, "ecc_errors"), part(gpu, "ecc_errors/volatile")
    # Before Ampere: <single_bit> and <double_bit> with a <total>; later sram and dram with (un)correctable.
    bad = sum(number(f) for f in now.iter() if "uncorrectable" in f.tag) + number(now.find("double_bit/total"))
    if bad:
        what = f"GPU {i}: {bad} uncorrectable memory errors"
        yield problem("gpu-ecc", what, "results may be wrong", Verdict.RESET_GPU)
    if text(errors, "aggregate/sram_threshold_exceeded") == "Yes" or text(errors, "unrepairable_memory") == "Yes":
        yield problem("gpu-ecc", f"GPU {i}: its memory is beyond repair", "errors will come back", Verdict.REPLACE)


@each_gpu
def repair_problems(i: int, gpu: Gpu) -> Iterator[Problem]:
    """Pages to retire and rows to remap: repairs that wait for a reset, or for which there is no reserve left."""
    if text(gpu, "remapped_rows/remapped_row_failure") == "Yes":
        what = f"GPU {i}: a memory row could not be remapped"
        yield problem("gpu-repair", what, "the GPU has no reserve left", Verdict.REPLACE)
    waits = [name for path, name in PENDING.items() if text(gpu, path) == "Yes"]
    if waits:
        what = f"GPU {i}: a {waits[0]} is pending"
        yield problem("gpu-repair", what, "it becomes active at a reset", Verdict.RESET_GPU)
    retired = sum(number(f) for f in gpu.findall("retired_pages/*/retired_count"))
    if retired >= RETIRED_PAGES_MOST:
        limit = f"{RETIRED_PAGES_MOST} are NVIDIA's limit"
        yield problem("gpu-repair", f"GPU {i}: {retired} pages retired", limit, Verdict.REPLACE)
    if number(gpu.find("remapped_rows/row_remapper_histogram/row_remapper_histogram_none"), "bank(s)"):
        what = f"GPU {i}: a memory bank has no spare rows left"
        yield problem("gpu-repair", what, "its next fault cannot be repaired", Verdict.WATCH, unfit=False)


@each_gpu
def recovery_problems(i: int, gpu: Gpu) -> Iterator[Problem]:
    """What the driver itself asks for."""
    asked = text(gpu, "gpu_recovery_action") or ""
    wants_reset = asked not in ("", "None", "N/A") or "Yes" in (
        text(gpu, "gpu_reset_status/reset_required"),
        text(gpu, "gpu_reset_status/drain_and_reset_recommended"),
    )
    if "reboot" in asked.lower() or wants_reset:
        verdict = Verdict.REBOOT if "reboot" in asked.lower() else Verdict.RESET_GPU
        what = f"GPU {i}: the driver asks for: {asked or 'Reset'}"
        yield problem("gpu-recovery", what, "its own advice", verdict)
