"""Small changes of the product's own code, each of which breaks something: found in the syntax, drawn by a seed.

What is changed are comparisons, and/or/not, arithmetic, numbers, True and False, what a function returns; and
statements are left out. Never text: no string, no docstring, no `print`.
"""

import ast
import collections
import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("cfn", "cluster", "dlami", "eks", "lab", "trainer")
FAKES = ("lab/aws", "lab/kube")  # the stand-ins for AWS and Kubernetes are tools of the tests

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    path: str  # below the checkout
    line: int
    begin: int  # bytes of the file that are replaced
    end: int
    old: str
    new: str

    @property
    def name(self) -> str:
        """What was changed and where, in one line."""
        return f"{self.path}:{self.line}: {_short(self.old)} -> {_short(self.new)}"

    def applied(self, text: bytes) -> bytes:
        """The file's bytes with the change."""
        return text[: self.begin] + self.new.encode() + text[self.end :]


def draw(root: Path, *, count: int, seed: int, only: str = "", left_out: tuple[str, ...] = ()) -> list[Mutant]:
    """So many changes of the modules below `only`, as many of each package, each as likely as any other there.

    With a larger count these and more. What is drawn of a module depends on that module alone, and not on its line
    numbers: a run that goes on in a later tree has the same changes but where the code is another.
    """
    lots = []
    for package in PACKAGES:
        found = [
            m for p in modules(root, only, left_out) if p.startswith(f"{package}/") for m in _in_order(root, p, seed)
        ]
        ordered = (m for _, m in sorted(found, key=lambda one: one[0]))
        lots.append(m for m in ordered if _is_python(m.applied((root / m.path).read_bytes())))
    in_turn = (m for row in itertools.zip_longest(*lots) for m in row if m)
    return list(itertools.islice(in_turn, count))


def _in_order(root: Path, path: str, seed: int) -> Iterator[tuple[str, Mutant]]:
    """A module's changes, each with its lot: of equal ones each has the next number."""
    seen: collections.Counter[tuple[str, str]] = collections.Counter()
    names: set[str] = set()
    for mutant in of_file(root, path):
        words = (mutant.old, mutant.new)
        seen[words] += 1
        if mutant.name not in names:  # two of a line that read the same are one
            yield hashlib.sha256(repr((seed, path, *words, seen[words])).encode()).hexdigest(), mutant
        names.add(mutant.name)


def modules(root: Path, only: str = "", left_out: tuple[str, ...] = ()) -> list[str]:
    """Paths of the modules that may be changed."""
    paths = (p.relative_to(root).as_posix() for package in PACKAGES for p in (root / package).rglob("*.py"))
    return sorted(p for p in paths if p.startswith(only) and not p.startswith((*FAKES, *left_out)))


def of_file(root: Path, path: str) -> list[Mutant]:
    """Every change of one module; one in a hundred is no Python any more."""
    text = (root / path).read_bytes()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node, new in _changes(ast.parse(text)):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        mutant = Mutant(path, node.lineno, begin, end, text[begin:end].decode(), new)
        if mutant.old != new:
            found.append(mutant)
    return found


def _changes(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Nodes and what may take their places, but for annotations, texts, assertions and the start of a program."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom) or _is_start(node):
                continue
            if isinstance(node, ast.expr):
                yield from ((node, new) for new in _expressions(node))
            elif isinstance(node, ast.stmt):
                yield from ((node, new) for new in _statements(node))
            if isinstance(node, ast.Return) and node.value and not _is_nothing(node.value):
                yield node.value, "None"
            if isinstance(node, ast.AST) and not _is_print(node):
                yield from _changes(node)


def _expressions(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Compare(left, [op], [right]) if type(op) in _COMPARED:
            yield _text(ast.Compare(left, [_COMPARED[type(op)]()], [right]))
        case ast.BoolOp(op, values):
            yield _text(ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values))
            yield _text(values[0])
            yield _text(values[-1])
        case ast.UnaryOp(ast.Not(), operand):
            yield _text(operand)
        case ast.BinOp(left, op, right) if type(op) in _COMPUTED and not any(map(_is_text, (left, right))):
            yield _text(ast.BinOp(left, _COMPUTED[type(op)](), right))
        case ast.IfExp(body=body, orelse=orelse) if not any(map(_is_text, (body, orelse))):
            yield _text(body)
            yield _text(orelse)
        case ast.Constant(bool() as value):
            yield str(not value)
        case ast.Constant(int() | float() as value):
            yield repr(value + 1)


def _statements(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.Expr(ast.Call()) if not _is_print(node):
            yield "pass"
        case ast.Raise() | ast.Delete():
            yield "pass"
        case ast.Break():
            yield "continue"
        case ast.Continue():
            yield "break"
        case ast.AugAssign(target, op, value) if type(op) in _COMPUTED and not _is_text(value):
            yield ast.unparse(ast.AugAssign(target, _COMPUTED[type(op)](), value))
        case ast.Assign([ast.Attribute() | ast.Subscript()], _):
            yield "pass"


def _text(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _is_nothing(node: ast.expr) -> bool:
    """Whether None in its place would mean the same to who asks for its truth."""
    return isinstance(node, ast.Constant) and not node.value


def _is_print(node: ast.AST) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print"


def _is_start(node: object) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _is_python(text: bytes) -> bool:
    try:
        compile(text, "mutant", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:59] + "…"
