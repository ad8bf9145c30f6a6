"""Comparison of several sets' categories, by id and name: a class number must mean the same in all of them."""

from collections.abc import Sequence

from trainer.coco.annotations import CocoSet
from trainer.errors import ConfigError


def check_categories(sets: Sequence[CocoSet]) -> None:
    """Refuse sets in which an id means different categories, or that one set has and another lacks.

    Capitals and blanks in names make no difference.

    Raises:
        ConfigError: names the files, the id and what it means in each.
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
    """Refuse names of classes in which a name that the set has, too, stands in another place.

    Args:
        names: in the order of the class numbers.
        where: whose they are, for the message.

    Raises:
        ConfigError: names the class and both names.
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
