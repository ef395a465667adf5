"""Every single-line change of meaning in the packages whose numbers matter, and a draw from them by a seed.

Candidates are found in the syntax tree: signs, constants, comparisons and their bounds, the order of arguments, a
function for its opposite, dropped terms and negations. Not in docstrings, messages, type annotations, assertions,
progress and warnings, whose wording no test should pin; nor where the change would only raise an error at its first
use, which is no achievement to notice: dimensions of tensors, and arguments of different types in each other's place.
"""

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

from tests.mutants.entries import ROOT, SOURCE, Entry, changed, scope_of_lines

PACKAGES = (
    "attacks", "threats.py", "losses.py", "objectives", "evaluation", "data", "training/schedules.py",
    "training/optimizer.py",
)  # fmt: skip

COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
}
OPERATORS: dict[type[ast.operator], tuple[str, tuple[str, ...]]] = {
    ast.Add: ("+", ("-",)),
    ast.Sub: ("-", ("+",)),
    ast.Mult: ("*", ("/",)),
    ast.Div: ("/", ("*",)),
    ast.FloorDiv: ("//", ("*",)),
    ast.Mod: ("%", ("//",)),
    ast.Pow: ("**", ("*",)),
    ast.BitAnd: ("&", ("|",)),
    ast.BitOr: ("|", ("&",)),
}
OPPOSITES = {
    "min": "max", "amin": "amax", "clamp_min": "clamp_max", "minimum": "maximum", "all": "any", "floor": "ceil",
    "argmin": "argmax",
}  # fmt: skip
OPPOSITES |= {value: key for key, value in OPPOSITES.items()}
TYPES = {"Annotated", "Callable", "Iterable", "Iterator", "Literal", "Sequence", "dict", "list", "tuple", "type"}
DROPPABLE = (ast.Add, ast.Sub, ast.BitAnd, ast.BitOr)
SILENT = {
    "Progress", "UserError", "ValueError", "RuntimeError", "TypeError", "KeyError", "OSError", "say", "warn", "message",
    "warning", "ResultWarning", "Suspect", "log", "progress.update", "progress.advance", "cast", "isinstance", "Field",
    "TypeVar",
}  # fmt: skip
"""Calls that speak, or that state types."""
SHAPING = {
    "view", "squeeze", "unsqueeze", "flatten", "permute", "gather", "scatter", "expand", "sum", "mean", "amax", "amin",
    "cumsum", "sort", "unbind", "chunk", "stack", "softmax", "log_softmax", "all", "any", "topk", "argsort", "movedim",
}  # fmt: skip
"""Calls whose constants are dimensions."""
SHAPING_KEYWORDS = {"dim", "keepdim", "strict", "retain_graph", "start_dim", "ndmin", "exist_ok", "parents"}
EXCHANGEABLE = {"where": 1, "range": 0, "clamp": 0, "linspace": 0, "divmod": 0, "addcmul": 1}
"""Functions of torch and Python: from which argument on they are of one type."""


class _Finder(ast.NodeVisitor):
    """Collects (line, first column, last column, replacement) of every candidate."""

    def __init__(self, source: str, signatures: "Signatures") -> None:
        self.signatures = signatures
        self.lines = [line.encode() for line in source.splitlines()]  # columns of the tree count bytes
        self.found: list[tuple[int, int, int, str]] = []
        self.visit(ast.parse(source))

    def text(self, node: ast.expr) -> str:
        return self.lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()

    def replace(self, node: ast.expr, new: str) -> None:
        if node.lineno == node.end_lineno:
            self.found.append((node.lineno, node.col_offset, node.end_col_offset or 0, new))

    def between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        """The operator between two operands of one line."""
        if left.end_lineno != right.lineno:
            return
        first, last = left.end_col_offset or 0, right.col_offset
        gap = self.lines[right.lineno - 1][first:last].decode()
        if gap.count(old) == 1:
            at = first + gap.index(old)
            self.found.append((right.lineno, at, at + len(old), new))

    def generic_visit(self, node: ast.AST) -> None:
        silent = (ast.JoinedStr, ast.Raise, ast.Assert, ast.Import, ast.ImportFrom)
        if not isinstance(node, silent):
            super().generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.visit(default)
        for statement in node.body:
            self.visit(statement)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func)
        if name in SILENT or name.split(".")[-1] in SILENT or _is_text(node):
            return
        last = name.split(".")[-1]
        if last in OPPOSITES and node.func.lineno == node.func.end_lineno:
            end = node.func.end_col_offset or 0
            self.found.append((node.func.lineno, end - len(last), end, OPPOSITES[last]))
        for number, (left, right) in enumerate(zip(node.args, node.args[1:], strict=False)):
            if left.lineno == right.end_lineno and self.text(left) != self.text(right) and self.alike(node, number):
                line = self.lines[left.lineno - 1]
                middle = line[left.end_col_offset : right.col_offset].decode()
                swapped = self.text(right) + middle + self.text(left)
                self.found.append((left.lineno, left.col_offset, right.end_col_offset or 0, swapped))
        for child in [node.func, *([] if last in SHAPING else node.args)]:
            self.visit(child)
        for keyword in node.keywords:
            if keyword.arg not in SHAPING_KEYWORDS:
                self.visit(keyword.value)

    def alike(self, call: ast.Call, number: int) -> bool:
        """Whether an argument and the next are of one type, so that they can be mistaken for each other."""
        if any(isinstance(argument, ast.Starred) for argument in call.args[: number + 2]):
            return False
        name = ast.unparse(call.func).split(".")[-1]
        if name in EXCHANGEABLE:
            return number >= EXCHANGEABLE[name]
        return name in self.signatures and all(
            number + 1 < len(types) and types[number] == types[number + 1] for types in self.signatures[name]
        )

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
            old, others = COMPARISONS[type(operator)]
            for new in others:
                self.between(left, right, old, new)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if _is_text(node):
            return
        old, others = OPERATORS.get(type(node.op), ("", ()))
        for new in others:
            self.between(node.left, node.right, old, new)
        if isinstance(node.op, DROPPABLE) and node.lineno == node.end_lineno:
            self.replace(node, self.text(node.left))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.between(left, right, f" {old} ", f" {new} ")
        if node.lineno == node.end_lineno:
            for dropped in node.values:
                kept = [f"({self.text(v)})" for v in node.values if v is not dropped]
                self.replace(node, f" {old} ".join(kept) if len(kept) > 1 else kept[0])
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        if not any(isinstance(one, ast.JoinedStr) or _is_empty(one) for one in (node.body, node.orelse)):
            self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not (isinstance(node.value, ast.Name) and node.value.id in TYPES):
            self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.USub | ast.Not | ast.Invert) and node.lineno == node.end_lineno:
            self.replace(node, self.text(node.operand))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self.replace(node, str(not value))
        elif isinstance(value, int):
            self.replace(node, str(value + 1))
        elif isinstance(value, float):
            self.replace(node, "1.0" if value == 0 else f"{self.text(node)} * 2")


def _is_empty(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == ""


def _is_text(node: ast.expr) -> bool:
    """Whether an expression joins strings, which only messages do."""
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr == "join" and _is_text(node.func.value)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


Signatures = dict[str, list[list[str]]]
"""By the name of a function or class, the types of its arguments in each place where it is defined."""


def signatures_of(root: Path) -> Signatures:
    signatures: Signatures = {}
    for path in sorted((root / SOURCE).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            types = None
            if isinstance(node, ast.FunctionDef):
                arguments = [one for one in [*node.args.posonlyargs, *node.args.args] if one.arg not in ("self", "cls")]
                types = [ast.unparse(one.annotation) if one.annotation else one.arg for one in arguments]
            elif isinstance(node, ast.ClassDef):
                types = [ast.unparse(one.annotation) for one in node.body if isinstance(one, ast.AnnAssign)]
            if types is not None:
                signatures.setdefault(node.name, []).append(types)
    return signatures


def candidates_of(file: str, source: str, signatures: Signatures) -> Iterator[Entry]:
    """Those of one file, of lines that occur once in their class or function."""
    lines, names = source.splitlines(), scope_of_lines(source)
    places = [(name, line.strip()) for name, line in zip(names, lines, strict=True)]
    for number, first, last, new in dict.fromkeys(_Finder(source, signatures).found):
        within, old = places[number - 1]
        line = lines[number - 1].encode()
        new_line = (line[:first] + new.encode() + line[last:]).decode().strip()
        if places.count((within, old)) == 1 and new_line != old:
            yield Entry(file, within, old, new_line)


def files(root: Path = ROOT) -> list[str]:
    """What is drawn from, below the package."""
    source = root / SOURCE
    paths = [path for name in PACKAGES for path in ([source / name] if "." in name else (source / name).rglob("*.py"))]
    return sorted(path.relative_to(source).as_posix() for path in paths)


def in_order(seed: int, root: Path = ROOT) -> Iterator[Entry]:
    """All candidates in the order of the draw, at most one for each line."""
    signatures = signatures_of(root)
    sources = {file: (root / SOURCE / file).read_text() for file in files(root)}
    every = [entry for file, source in sources.items() for entry in candidates_of(file, source, signatures)]
    every.sort(key=lambda entry: hashlib.sha256(f"{seed}:{entry.key}".encode()).hexdigest())
    seen = set()
    for entry in every:
        line = (entry.file, entry.within, entry.old)
        if line not in seen and _compiles(changed(entry, sources[entry.file])):
            seen.add(line)
            yield entry


def _compiles(source: str) -> bool:
    try:
        compile(source, "changed", "exec")
    except (SyntaxError, ValueError):
        return False
    return True
