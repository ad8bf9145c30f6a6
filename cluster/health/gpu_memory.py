"""Judges of a GPU's memory: errors, repairs that wait or failed, and what the driver asks for because of them."""

from collections.abc import Iterator

from cluster.health.smi import Gpu, each_gpu, number, part, problem, text
from cluster.health.verdict import Problem, Verdict

RETIRED_PAGES_MOST = 60  # NVIDIA, dynamic page retirement: more are grounds for a return
PENDING = {  # where a repair that waits is told, and its name
    "remapped_rows/remapped_row_pending": "row remap",
    "retired_pages/pending_retirement": "page retirement",
    "retired_pages/pending_blacklist": "page retirement",
    "ecc_errors/channel_repair_pending": "channel repair",
    "ecc_errors/tpc_repair_pending": "TPC repair",
}


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
