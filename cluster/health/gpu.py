"""Judges of `nvidia-smi -q -x`: the driver, the number of GPUs, clocks, heat, power, PCIe, the NVSwitch fabric."""

from cluster.health.check import About, Answer
from cluster.health.smi import NO_ANSWER, degrees, gpus, must, number, problem, text, watts
from cluster.health.verdict import Problem, Unreadable, Verdict
from cluster.health.xid import HANGS


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
        return [
            *problems,
            problem("gpu-count", f"{number} GPUs, its type has {expected}", "a GPU is lost", Verdict.REBOOT),
        ]
    if number != about.host.slots:
        return [
            *problems,
            Problem(
                check="gpu-count",
                what=f"{number} GPUs, but slots={about.host.slots} in the hostfile",
                means="ranks would share a GPU, or GPUs would idle",
                do=f"say slots={number} there",
                verdict=Verdict.RESTART_JOB,
                command="edit the hosts file, then: inv health --hosts {ranks}",
            ),
        ]
    return problems


def answer_problems(log: str, about: About) -> list[Problem]:
    """GPUs that the driver lists but cannot ask any more."""
    return [
        problem(
            "gpu-driver",
            f"GPU {i} does not tell its {field.tag}: {field.text.strip()}",
            "the driver lost contact with it",
            Verdict.REBOOT,
        )
        for i, gpu in gpus(log)
        for field in [next((f for f in gpu.iter() if f.text and f.text.strip() in NO_ANSWER), None)]
        if field is not None and field.text
    ]


def throttle_problems(log: str, about: About) -> list[Problem]:
    """Clocks held down by heat or power: watched, as the job goes on, only slower."""
    reasons = {
        "hw_thermal_slowdown": "heat",
        "hw_power_brake_slowdown": "the power supply",
        "sw_thermal_slowdown": "heat",
        "hw_slowdown": "the hardware",
    }
    problems = []
    for i, gpu in gpus(log):
        fields = gpu.find("clocks_event_reasons")
        fields = gpu.find("clocks_throttle_reasons") if fields is None else fields  # its name before driver 535
        if fields is None:
            raise Unreadable("no <clocks_event_reasons>")
        why = list(
            dict.fromkeys(
                said
                for name, said in reasons.items()
                for f in fields
                if f.tag.endswith(f"reason_{name}") and (f.text or "").strip() == "Active"
            )
        )
        if why:
            problems.append(
                problem(
                    "gpu-throttle",
                    f"GPU {i}: slowed down by {', '.join(why)}",
                    "all ranks wait for the slowest",
                    Verdict.WATCH,
                    unfit=False,
                )
            )
    return problems


def temperature_problems(log: str, about: About) -> list[Problem]:
    """Against the GPU's own limits; newer drivers say how far it is from them instead."""
    problems = []
    for i, gpu in gpus(log):
        heat = gpu.find("temperature")
        if heat is None:
            raise Unreadable("no <temperature>")
        now, slow = degrees(heat, "gpu_temp"), degrees(heat, "gpu_temp_slow_threshold")
        left, slow_left = degrees(heat, "gpu_temp_tlimit"), degrees(heat, "gpu_temp_slow_tlimit_threshold")
        memory, memory_most = degrees(heat, "memory_temp"), degrees(heat, "gpu_temp_max_mem_threshold")
        if now is None:
            raise Unreadable("no <gpu_temp>")
        if (slow is not None and now >= slow) or (left is not None and slow_left is not None and left <= slow_left):
            problems.append(
                problem(
                    "gpu-temperature",
                    f"GPU {i}: {now:.0f} C, where it slows down",
                    "its cooling fails",
                    Verdict.REPLACE,
                )
            )
        elif memory is not None and memory_most is not None and memory >= memory_most:
            problems.append(
                problem(
                    "gpu-temperature",
                    f"GPU {i}: memory at {memory:.0f} C, its limit",
                    "its cooling fails",
                    Verdict.REPLACE,
                )
            )
    return problems


def power_problems(log: str, about: About) -> list[Problem]:
    """A power limit below the GPU's default: it would be slower than the others."""
    problems = []
    for i, gpu in gpus(log):
        power = gpu.find("gpu_power_readings")
        power = gpu.find("power_readings") if power is None else power  # its name before driver 535
        if power is None:
            raise Unreadable("no <gpu_power_readings>")
        limit = (
            watts(power, "current_power_limit") or watts(power, "enforced_power_limit") or watts(power, "power_limit")
        )
        usual = watts(power, "default_power_limit")
        if limit is not None and usual is not None and limit < usual:
            problems.append(
                Problem(
                    check="gpu-power",
                    what=f"GPU {i}: limited to {limit:.0f} W of {usual:.0f} W",
                    means="all ranks wait for the slowest",
                    do="give it its default back",
                    unfit=False,
                    verdict=Verdict.WATCH,
                    command=f"inv run --hosts {{ranks}} --sudo -- nvidia-smi -pl {usual:.0f}",
                )
            )
    return problems


def persistence_problems(log: str, about: About) -> list[Problem]:
    """Without it the driver leaves and comes back with every process that asks it: seconds each time."""
    off = [i for i, gpu in gpus(log) if must(gpu, "persistence_mode") == "Disabled"]
    return (
        [
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
        if off
        else []
    )


def pcie_problems(log: str, about: About) -> list[Problem]:
    """Lanes lost always count; the speed only while the GPU works, as it drops at rest."""
    problems = []
    for i, gpu in gpus(log):
        link = gpu.find("pci/pci_gpu_link_info")
        if link is None:
            raise Unreadable("no <pci_gpu_link_info>")
        width, most = (
            number(link.find("link_widths/current_link_width"), "x"),
            number(link.find("link_widths/max_link_width"), "x"),
        )
        speed, fastest = number(link.find("pcie_gen/current_link_gen")), number(link.find("pcie_gen/max_link_gen"))
        works = text(gpu, "performance_state") == "P0"
        if width < most:
            problems.append(
                problem("gpu-pcie", f"GPU {i}: {width} of {most} PCIe lanes", "its input comes slower", Verdict.REBOOT)
            )
        elif speed < fastest and works:
            problems.append(
                problem(
                    "gpu-pcie",
                    f"GPU {i}: PCIe generation {speed} of {fastest} under load",
                    "its input comes slower",
                    Verdict.REBOOT,
                    unfit=False,
                )
            )
    return problems


def fabric_problems(log: str, about: About) -> list[Problem]:
    """Whether each GPU joined the NVSwitch fabric; drivers before 525 do not say."""
    problems = []
    for i, gpu in gpus(log):
        state, status = text(gpu, "fabric/state"), text(gpu, "fabric/status")
        if state == "In Progress" or (state == "Completed" and status not in ("Success", "N/A", None)):
            problems.append(
                Problem(
                    check="gpu-fabric",
                    what=f"GPU {i} has not joined the NVSwitch fabric: {state}, {status}",
                    means="CUDA will refuse to start (error 802)",
                    verdict=Verdict.REBOOT,
                    do="restart the fabric manager",
                    command="inv run --hosts {ranks} --sudo -- systemctl restart nvidia-fabricmanager",
                )
            )
    return problems
