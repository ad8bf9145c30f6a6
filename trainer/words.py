"""Words that depend on a number."""


def counted(number: object, noun: str) -> str:
    """`1 image`, `2 images`, `0.5 epochs`: as the project's tasks count."""
    shown = f"{number:g}" if isinstance(number, float) else f"{number}"
    return f"{shown} {noun}{'' if number == 1 else 's'}"
