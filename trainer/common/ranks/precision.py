"""Loss scale for training in float16, which keeps small gradients from becoming zero. No TensorFlow."""

DYNAMIC = "dynamic"
"""Loss scale that follows the gradients: halved by an overflow, doubled after `GROWS_AFTER` steps without one."""
FIRST_SCALE = 2.0**15
GROWS_AFTER = 2000
LARGEST_SCALE = 2.0**24


def is_loss_scale(text: str) -> bool:
    """Return True if the text is `DYNAMIC` or a number above 0."""
    try:
        return text == DYNAMIC or 0 < float(text) < float("inf")
    except ValueError:
        return False


def first_scale(text: str) -> float:
    """Return the initial loss scale. A given number stays constant."""
    return FIRST_SCALE if text == DYNAMIC else float(text)
