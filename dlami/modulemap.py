"""The map of docs/architecture.md: every folder and module of the packages with the first line of its docstring."""

import ast
import re
from pathlib import Path

PACKAGES = ("dlami", "cluster", "cfn", "trainer")
_BEGIN, _END = "## The map\n", "## Three walks\n"


def with_map(page: str, root: Path) -> str:
    """The page with its map written anew from the tree below `root`."""
    head, _, rest = page.partition(_BEGIN)
    intro, tail = rest.partition("### ")[0], rest.partition(_END)[2]
    return f"{head}{_BEGIN}{intro.rstrip()}\n\n{_sections(root)}\n{_END}{tail}"


def _sections(root: Path) -> str:
    folders = [sorted({p.parent for p in (root / package).rglob("*.py")}) for package in PACKAGES]
    return "\n".join(_section(folder, root) for package in folders for folder in package)


def _section(folder: Path, root: Path) -> str:
    """A folder's sentence, and a row for each of its modules."""
    rows = [f"| `{p.stem}` | {_first_line(p)} |\n" for p in sorted(folder.glob("*.py")) if p.name != "__init__.py"]
    table = f"\n| module | |\n|---|---|\n{''.join(rows)}" if rows else ""
    return f"### `{folder.relative_to(root)}/`\n\n{_first_line(folder / '__init__.py')}\n{table}"


def _first_line(path: Path) -> str:
    """A module's docstring up to its first empty line, without the command that runs it."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return re.sub(r"^`python -m [^`]*`[:,]? ?", "", " ".join(text.partition("\n\n")[0].split())).replace("|", "\\|")
