"""What the operator reads: the reference's table and its evaluation line."""

import platform

TRAIN_HEADER = "  Step Epoch   Speed   Loss FinLoss      LR"
EVAL_HEADER = "  step  epoch    top1    top5    loss  checkpoint_time(UTC)"


def header(tensorflow: str, ranks: int, threads: int) -> str:
    """Versions and the number of ranks."""
    return f"PY{platform.python_version()} TF{tensorflow} threads per rank: {threads}\nHorovod size: {ranks}"


def train_line(step: int, epoch: float, images_per_s: float, loss: float, total_loss: float, lr: float) -> str:
    """One line of the table: speed over all ranks, loss without and with the L2 term."""
    return f"{step:6} {epoch:5.1f} {images_per_s:7.1f} {loss:6.3f} {total_loss:7.3f} {lr:7.5f}"


def eval_line(step: int, epoch: float, top1: float, top5: float, loss: float, checkpoint_time: str) -> str:
    """One line per evaluated checkpoint; top-1 and top-5 in percent, the time ISO 8601 in UTC."""
    when = checkpoint_time.replace("T", " ").removesuffix("Z")
    return f"{step:6} {epoch:6.1f} {top1:7.3f} {top5:7.3f} {loss:7.3f}  {when}"
