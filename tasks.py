"""What `inv` finds in a checkout: the tasks of the command `dlami`."""

from dlami import invoke_words, output
from dlami.collection import ns

__all__ = ["ns"]

invoke_words.install()
output.install()
