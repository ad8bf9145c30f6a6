"""Judges of a GPU's memory: errors, repairs that wait or failed, and what the driver asks for because of them."""

from cluster.health.check import About
from cluster.health.smi import gpus, number, problem, text
from cluster.health.verdict import Problem, Unreadable, Verdict

RETIRED_PAGES_MOST = 60  # NVIDIA, dynamic page retirement: more are grounds for a return


def ecc_problems(log: str, about: About) -> list[Problem]:
    """Memory errors that could not be corrected since the driver was loaded, and the driver's own verdict on them."""
    problems = []
    for i, gpu in gpus(log):
        errors = gpu.find("ecc_errors")
        if errors is None:
            raise Unreadable("no <ecc_errors>")
        now = errors.find("volatile")
        if now is None:
            raise Unreadable("no <volatile> in <ecc_errors>")
        # Before Ampere: <single_bit> and <double_bit> with a <total>; later sram and dram with (un)correctable.
        bad = sum(number(f) for f in now.iter() if "uncorrectable" in f.tag) + number(now.find("double_bit/total"))
        if bad:
            problems.append(
                problem(
                    "gpu-ecc", f"GPU {i}: {bad} uncorrectable memory errors", "results may be wrong", Verdict.RESET_GPU
                )
            )
        if text(errors, "aggregate/sram_threshold_exceeded") == "Yes" or text(errors, "unrepairable_memory") == "Yes":
            problems.append(
                problem("gpu-ecc", f"GPU {i}: its memory is beyond repair", "errors will come back", Verdict.REPLACE)
            )
    return problems


def repair_problems(log: str, about: About) -> list[Problem]:
    """Pages to retire and rows to remap: repairs that wait for a reset, or for which there is no reserve left."""
    problems = []
    for i, gpu in gpus(log):
        if text(gpu, "remapped_rows/remapped_row_failure") == "Yes":
            problems.append(
                problem(
                    "gpu-repair",
                    f"GPU {i}: a memory row could not be remapped",
                    "the GPU has no reserve left",
                    Verdict.REPLACE,
                )
            )
        waits = [
            name
            for name, path in (
                ("row remap", "remapped_rows/remapped_row_pending"),
                ("page retirement", "retired_pages/pending_retirement"),
                ("page retirement", "retired_pages/pending_blacklist"),
                ("channel repair", "ecc_errors/channel_repair_pending"),
                ("TPC repair", "ecc_errors/tpc_repair_pending"),
            )
            if text(gpu, path) == "Yes"
        ]
        if waits:
            problems.append(
                problem(
                    "gpu-repair", f"GPU {i}: a {waits[0]} is pending", "it becomes active at a reset", Verdict.RESET_GPU
                )
            )
        retired = sum(number(f) for f in gpu.findall("retired_pages/*/retired_count"))
        if retired >= RETIRED_PAGES_MOST:
            problems.append(
                problem(
                    "gpu-repair",
                    f"GPU {i}: {retired} pages retired",
                    f"{RETIRED_PAGES_MOST} are NVIDIA's limit",
                    Verdict.REPLACE,
                )
            )
        if number(gpu.find("remapped_rows/row_remapper_histogram/row_remapper_histogram_none"), "bank(s)"):
            problems.append(
                problem(
                    "gpu-repair",
                    f"GPU {i}: a memory bank has no spare rows left",
                    "its next fault cannot be repaired",
                    Verdict.WATCH,
                    unfit=False,
                )
            )
    return problems


def recovery_problems(log: str, about: About) -> list[Problem]:
    """What the driver itself asks for."""
    problems = []
    for i, gpu in gpus(log):
        asked = text(gpu, "gpu_recovery_action") or ""
        if "reboot" in asked.lower():
            problems.append(
                problem("gpu-recovery", f"GPU {i}: the driver asks for: {asked}", "its own advice", Verdict.REBOOT)
            )
        elif (
            asked not in ("", "None", "N/A")
            or text(gpu, "gpu_reset_status/reset_required") == "Yes"
            or text(gpu, "gpu_reset_status/drain_and_reset_recommended") == "Yes"
        ):
            problems.append(
                problem(
                    "gpu-recovery",
                    f"GPU {i}: the driver asks for: {asked or 'Reset'}",
                    "its own advice",
                    Verdict.RESET_GPU,
                )
            )
    return problems
