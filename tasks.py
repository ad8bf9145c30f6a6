"""Tasks of the command `dlami`, as `inv` finds them in a checkout."""

from dlami import closed_streams, interrupts

closed_streams.open_closed_streams()
interrupts.install()

from dlami import invoke_words, output  # noqa: E402
from dlami.collection import ns  # noqa: E402

__all__ = ["ns"]

invoke_words.install()
output.install()
