"""What `inv` finds in a checkout: the tasks of the command `dlami`."""

from dlami import closed_streams, interrupts

closed_streams.open_closed_streams()
interrupts.install()

from dlami import invoke_words, output  # noqa: E402
from dlami.collection import ns  # noqa: E402

__all__ = ["ns"]

invoke_words.install()
output.install()
