"""Heat map of ranks by time: a PNG with a pixel per rank and column, and the meaning of its colours."""

import base64
import struct
import zlib

from cluster.jobs.curves.rank_map import RankMap

# Upper bound of the share, and its colour, from faster than the median to slower. Palette index 0: not known.
COLOURS: tuple[tuple[float, str], ...] = (
    (0.6, "#08519c"),
    (0.75, "#3182bd"),
    (0.9, "#9ecae1"),
    (1.1, "#dfe3e8"),
    (1.3, "#fdd49e"),
    (1.6, "#fc8d59"),
    (2.2, "#d7301f"),
    (99.0, "#7f0000"),
)


def picture(ranks: RankMap) -> str:
    """Return the whole map as a `data:` address of a PNG."""
    rows = b"".join(b"\0" + bytes(_index(share) for share in row) for row in ranks.shares())
    head = struct.pack(">IIBBBBB", ranks.columns, ranks.ranks, 8, 3, 0, 0, 0)
    palette = b"\0\0\0" + b"".join(bytes.fromhex(colour[1:]) for _, colour in COLOURS)
    parts = ((b"IHDR", head), (b"PLTE", palette), (b"tRNS", b"\0"), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, body) for kind, body in parts)
    return "data:image/png;base64," + base64.b64encode(png).decode()


def meanings() -> list[tuple[str, str]]:
    """Return each colour with its meaning."""
    words, low = [], None
    for high, colour in COLOURS:
        if low is None:
            said = f"up to {high:g}"
        elif high > 50:
            said = f"more than {low:g}"
        else:
            said = f"{low:g} to {high:g}"
        words.append((colour, said))
        low = high
    return words


def _index(share: float | None) -> int:
    if share is None:
        return 0
    return next(n for n, (high, _) in enumerate(COLOURS, start=1) if share <= high)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
