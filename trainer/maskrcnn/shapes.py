"""Sizes of resized images, and shapes of padded batches. No TensorFlow."""

from collections.abc import Iterable

from trainer.maskrcnn.config_training import PreprocConfig

Shape = tuple[int, int]
"""Height and width in pixels."""
MULTIPLE = 32
"""Every padded side is a multiple of this: the coarsest convolution's stride."""


def resized(height: int, width: int, short_edge: int, max_size: int) -> Shape:
    """Return the size with the shorter side at `short_edge`, unless the longer would pass `max_size`; at least 1 x 1.

    Halves are rounded up. Steps and sizes are those of tensorpack.
    """
    scale = short_edge / min(height, width)
    sides = (float(short_edge), scale * width) if height < width else (scale * height, float(short_edge))
    if max(sides) > max_size:
        scale = max_size / max(sides)
        sides = sides[0] * scale, sides[1] * scale
    return max(int(sides[0] + 0.5), 1), max(int(sides[1] + 0.5), 1)


def candidates(config: PreprocConfig) -> list[Shape]:
    """Return the shapes that batches are padded to, smallest area first. The last one holds every image.

    For short side s and longest side m: s by 4/3 s, 3/2 s and m, each also upright, for the smallest and the largest s
    of the jitter, and m by m for batches of both orientations.
    """
    if config.padding_shapes:
        return sorted(config.padding_shapes, key=lambda s: (s[0] * s[1], s))
    longest = up(config.longest_side)
    shapes = {(longest, longest)}
    for short in {config.train_short_edge_size[0], config.train_short_edge_size[-1], config.test_short_edge_size}:
        for long in (short, short * 4 / 3, short * 3 / 2, config.longest_side):
            side = min(up(long), longest)
            shapes |= {(up(short), side), (side, up(short))}
    return sorted(shapes, key=lambda s: (s[0] * s[1], s))


def padded(sizes: Iterable[Shape], config: PreprocConfig) -> Shape:
    """Return the shape that a batch of images of these sizes is padded to: the smallest candidate that holds them all.

    An image larger than all predefined shapes is padded to the next multiple of 32.
    """
    heights, widths = zip(*sizes, strict=True)
    tight = up(max(heights)), up(max(widths))
    if not config.predefined_padding:
        return tight
    return next((s for s in candidates(config) if s[0] >= tight[0] and s[1] >= tight[1]), tight)


def up(side: float) -> int:
    """Round up to the next multiple of 32."""
    return -(-int(-(-side // 1)) // MULTIPLE) * MULTIPLE
