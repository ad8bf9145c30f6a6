"""Edits of a cluster file that keep what the operator wrote."""

from collections.abc import Mapping
from typing import Any


def with_fields(text: str, table: str, values: Mapping[str, str | int], mark: str = "") -> str:
    """Return a cluster file's text with fields of one table set, and all else as the operator wrote it.

    Args:
        mark: a comment on each line that is written.
    """
    import tomlkit

    document = tomlkit.parse(text if text.endswith("\n") else text + "\n")
    if table not in document:
        document[table] = tomlkit.table()
    own: Any = document[table]
    for name, value in values.items():
        if own.get(name) == value:
            continue
        item = tomlkit.item(value)
        inline = isinstance(own, tomlkit.items.InlineTable)
        if mark and not inline:
            item.comment(mark)
        if name in own or inline or not own:
            own[name] = item
        else:  # directly below the last field: a comment after it may belong to the next table
            own.value._insert_after(list(own)[-1], name, item)
    return tomlkit.dumps(document)
