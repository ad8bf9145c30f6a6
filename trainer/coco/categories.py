"""Comparison of several sets' categories, by id and name: a class number must mean the same in all of them."""

from collections.abc import Sequence

from trainer.coco.annotations import CocoSet
from trainer.common.files.errors import ConfigError


def check_categories(sets: Sequence[CocoSet]) -> None:
    """Raise ConfigError unless all sets have the same category ids with the same names.

    Case and blanks in names make no difference.

    Raises:
        ConfigError: the message names the files, the id and its name in each.
    """
    first = sets[0]
    expected = dict(zip(first.category_ids, first.class_names, strict=True))
    for data in sets[1:]:
        own = dict(zip(data.category_ids, data.class_names, strict=True))
        for id in sorted(set(own) | set(expected)):
            one, other = own.get(id), expected.get(id)
            if one is None or other is None or _plain(one) != _plain(other):
                raise ConfigError(
                    f"{data.file} has other categories than {first.file}: there {id} is {other or 'missing'}, here "
                    f"{one or 'missing'}: export both with the same ids"
                )


def check_order(data: CocoSet, names: Sequence[str], where: str) -> None:
    """Raise ConfigError if a name that the set also has is at another place among the given names.

    Args:
        names: in the order of the class numbers.
        where: their origin, for the message.

    Raises:
        ConfigError: the message names the class and both names.
    """
    known = {_plain(name): place for place, name in enumerate(data.class_names, start=1)}
    for place, name in enumerate(names, start=1):
        if known.get(_plain(name), place) != place:
            raise ConfigError(
                f"class {place} is {name!r} by {where}, but {name!r} is class {known[_plain(name)]} in {data.file}: "
                "bring the categories into one order"
            )


def _plain(name: str) -> str:
    return " ".join(name.split()).casefold()
