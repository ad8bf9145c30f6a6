"""Filter of control characters, so that text from ranks and hosts cannot steer the operator's terminal.

An escape sequence can fill the clipboard, rename the window, clear the screen or hide the line after it. Our own
sentences keep our own colours alone. A program's output keeps all colours. Other control characters are shown as
`less` shows them: `^[` for ESC, `<U+202E>`, `<FF>` for a byte that is no text.
"""

import codecs
import io
import re

# Colours; or C0 and C1 controls, lone surrogates, and the characters that reverse, hide or break a line.
_CONTROL = re.compile(
    r"(\x1b\[[0-9;:]*m)|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    r"\ud800-\udfff\U000e0000-\U000e007f]"
)
_OURS = re.compile(r"(\x1b\[(?:0|31|32|33)m)")  # what `terminal.painted` writes
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;:]*)?\Z")


def printable(text: str) -> str:
    """Return the text without colours, and with every other control character but newline and tab made visible."""
    return _CONTROL.sub(lambda found: "" if found[1] else _visible(found[0]), text.replace("\r\n", "\n"))


def sentence(text: str) -> str:
    """Return the text as `printable` does, but keep our own colours."""
    if text.isprintable():
        return text
    return "".join(part if n % 2 else printable(part) for n, part in enumerate(_OURS.split(text)))


class OutputFilter:
    """Filter for a program's bytes on their way to a terminal: text, colours and carriage returns pass."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._held = ""  # the beginning of an escape sequence whose end has not arrived yet

    def feed(self, data: bytes) -> str:
        """Return the text that can be shown now."""
        text = self._held + self._decoder.decode(data)
        unfinished = _UNFINISHED.search(text)
        self._held = unfinished[0] if unfinished and len(unfinished[0]) < 64 else ""
        return _CONTROL.sub(_of_output, text[: len(text) - len(self._held)])


class Sentences(io.TextIOWrapper):
    """Standard stream whose text is filtered by `sentence`. Bytes for its `buffer` are not."""

    def __init__(self, unfiltered: io.TextIOWrapper) -> None:
        super().__init__(
            unfiltered.buffer,
            encoding=unfiltered.encoding,
            errors=unfiltered.errors,
            line_buffering=unfiltered.line_buffering,
            write_through=unfiltered.write_through,
        )
        self.unfiltered = unfiltered

    def write(self, text: str) -> int:
        """Write the text, filtered."""
        super().write(sentence(text))
        return len(text)


def _of_output(found: "re.Match[str]") -> str:
    return found[0] if found[1] or found[0] == "\r" else _visible(found[0])


def _visible(control: str) -> str:
    code = ord(control)
    if code < 0x80:
        return f"^{chr(code ^ 0x40)}"
    return f"<{code - 0xDC00:02X}>" if 0xDC80 <= code <= 0xDCFF else f"<U+{code:04X}>"
