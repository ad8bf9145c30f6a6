"""Text whose form depends on a number."""


def counted(number: object, noun: str) -> str:
    """Return `1 image`, `2 images`, `0.5 epochs`, the form in which the project's tasks print counts."""
    shown = f"{number:g}" if isinstance(number, float) else f"{number}"
    return f"{shown} {noun}{'' if number == 1 else 's'}"
