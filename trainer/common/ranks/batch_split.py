"""Division of the job's global batch among the ranks of an attempt, and the sentence that reports it."""

from dataclasses import dataclass

from trainer.common.files.plural import counted


@dataclass(frozen=True)
class Origin:
    """Global batch and ranks of a job's first attempt, for which its flags' learning rate and length are meant."""

    batch: int  # images per step over all ranks
    ranks: int  # 0: unknown, from an older checkpoint


@dataclass(frozen=True)
class BatchShare:
    """Batch and micro-steps that one rank computes in a step."""

    batch: int
    parts: int  # micro-steps, with one update


def share(whole: int, ranks: int, largest: int) -> BatchShare | None:
    """Return an equal share of the whole in the fewest parts that each fit. Returns None if there is no sensible one.

    Args:
        largest: the previous part's size, which fits a rank's memory. A part has no fewer than half of it. Otherwise a
            prime number of images would be split into parts of one image, slow and without useful batch statistics.
    """
    batch, rest = divmod(whole, ranks)
    if rest:
        return None
    parts = next(p for p in range(1, batch + 1) if batch % p == 0 and batch // p <= largest)
    return BatchShare(batch, parts) if 2 * (batch // parts) >= min(batch, largest) else None


def change_text(origin: Origin, *, before: int, ranks: int, batch: int, parts: int) -> str:
    """Return the sentence that reports another number of ranks or another batch; "" if both are as in the beginning.

    Args:
        before: ranks of the previous attempt.
        batch: images per step over all ranks.
        parts: micro-steps of each rank in a step.
    """
    who = counted(ranks, "rank")
    if batch != origin.batch:
        images = counted(batch, "image")
        now = f"learning rate x {batch / origin.batch:.4g}, for {images} per step instead of {origin.batch}"
        return now if ranks == origin.ranks else f"{who} instead of {origin.ranks or 'others'}: {now}"
    if ranks == origin.ranks or not origin.ranks:
        return (
            f"{who} again, as at the beginning: {counted(batch, 'image')} per step" if before not in (0, ranks) else ""
        )
    how = f"{parts} micro-steps each" if parts > 1 else f"{counted(batch // ranks, 'image')} each"
    return f"{who} instead of {origin.ranks}: {how} keep the global batch of {batch}"
