"""The mutations of one module: small changes of code inside functions, each of which some test should notice.

Log calls, assertions, annotations, and code outside functions (constants, class bodies, defaults) stay as they are.
"""

from __future__ import annotations

import ast
import bisect
import hashlib
import itertools
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import cast

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
}
LOGGERS = ("logger", "logging", "log", "warnings")

Place = tuple[int, int]
"""A range of bytes in a source file: the first byte, and the byte after the last."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed place of one module."""

    module: str
    """The path of the file in the repository."""
    function: str
    """The qualified name of the innermost function."""
    operator: str
    line: int
    text: str
    """The first changed line as it is, without its indentation."""
    now: str
    """The same line when mutated."""
    place: Place
    replacement: str
    number: int = 0
    """Distinguishes mutants of a module whose other fields are equal."""

    @property
    def id(self) -> str:
        """Stays the same as long as the function's name and the line do."""
        parts = (self.module, self.function, self.operator, self.text, self.now, str(self.number))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    def apply(self, source: bytes) -> bytes:
        """The mutated file; its lines keep their numbers."""
        first, after = self.place
        lines = "\n" * (source[first:after].count(b"\n") - self.replacement.count("\n"))
        text = f"{self.replacement[:-1]}{lines})" if self.replacement.endswith(")") else self.replacement + lines
        return source[:first] + text.encode() + source[after:]


def order(mutants: Sequence[Mutant], seed: int) -> list[Mutant]:
    """All mutants in an order that the seed chooses: a larger sample continues a smaller one, and new code moves no old mutant."""
    return sorted(mutants, key=lambda mutant: hashlib.sha256(f"{seed} {mutant.id}".encode()).digest())


def mutants_of(module: str, source: bytes) -> list[Mutant]:
    """Every mutant of a module, also those that do not compile."""
    made: list[Mutant] = []
    seen: dict[str, int] = {}
    for mutant in _Finder(module, source).find():
        number = seen.get(mutant.id, 0)
        seen[mutant.id] = number + 1
        made.append(replace(mutant, number=number))
    return made


def compiles(mutant: Mutant, source: bytes) -> bool:
    """Whether the mutated file is valid Python."""
    try:
        compile(mutant.apply(source), mutant.module, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


class _Finder:
    def __init__(self, module: str, source: bytes) -> None:
        self._module = module
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._names: list[str] = []
        self._depth = 0

    def find(self) -> Generator[Mutant]:
        yield from self._of(ast.parse(self._source))

    def _of(self, node: ast.AST) -> Generator[Mutant]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._names.append(node.name)
            self._depth += 1
            for statement in node.body:
                yield from self._of(statement)
            self._depth -= 1
            self._names.pop()
            return
        if isinstance(node, ast.ClassDef):
            self._names.append(node.name)
            for statement in node.body:
                yield from self._of(statement)
            self._names.pop()
            return
        if isinstance(node, ast.Assert) or self._is_log(node):
            return
        if self._depth:
            for operator, place, replacement in self._changes(node):
                yield self._mutant(operator, place, replacement)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            for item in cast("list[object]", value) if isinstance(value, list) else [value]:
                if isinstance(item, ast.AST):
                    yield from self._of(item)

    @staticmethod
    def _is_log(node: ast.AST) -> bool:
        call = node.value if isinstance(node, ast.Expr) else None
        called = call.func if isinstance(call, ast.Call) else None
        return isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id in LOGGERS

    def _changes(self, node: ast.AST) -> Generator[tuple[str, Place, str]]:
        yield from self._of_operators(node)
        yield from self._of_values(node)
        yield from self._of_statements(node)
        for test in self._conditions(node):
            if not isinstance(test, ast.Compare | ast.Constant) and not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
                yield "negate", self._place(test), f"not ({self._text(test)})"

    def _of_operators(self, node: ast.AST) -> Generator[tuple[str, Place, str]]:
        match node:
            case ast.Compare(left=left, ops=ops, comparators=right):
                for first, op, second in zip([left, *right], ops, right, strict=False):
                    yield from self._operator("compare", first, second, COMPARISONS[type(op)])
            case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
                yield from self._operator("arithmetic", left, right, ARITHMETIC[type(op)])
            case ast.BoolOp(op=op, values=values):
                words = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
                for first, second in itertools.pairwise(values):
                    yield from self._operator("and-or", first, second, words)
                for value in values:
                    others = [self._text(other) for other in values if other is not value]
                    yield "drop-operand", self._place(node), f" {words[0]} ".join(f"({other})" for other in others)
            case _:
                pass

    def _of_values(self, node: ast.AST) -> Generator[tuple[str, Place, str]]:
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield "drop-not", self._place(node), f"({self._text(operand)})"
            case ast.Constant(value=bool() as value):
                yield "flip", self._place(node), str(not value)
            case ast.Constant(value=int() as value):
                yield "number", self._place(node), str(value + 1)
            case ast.For(iter=each) | ast.comprehension(iter=each):
                yield "empty-loop", self._place(each), "()"
            case _:
                pass

    def _of_statements(self, node: ast.AST) -> Generator[tuple[str, Place, str]]:
        match node:
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield "return-none", self._place(value), "None"
            case ast.ExceptHandler(type=ast.expr() as kind):
                yield "handler", self._place(kind), "()"
            case ast.Break():
                yield "break-continue", self._place(node), "continue"
            case ast.Continue():
                yield "break-continue", self._place(node), "break"
            case (
                ast.Raise()
                | ast.Delete()
                | ast.AugAssign()
                | ast.Expr(value=ast.Call() | ast.Await())
                | ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_])
            ):
                yield "drop-statement", self._place(node), "pass"
            case _:
                pass

    @staticmethod
    def _conditions(node: ast.AST) -> list[ast.expr]:
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            return [node.test]
        if isinstance(node, ast.comprehension):
            return node.ifs
        return [node.guard] if isinstance(node, ast.match_case) and node.guard is not None else []

    def _operator(self, name: str, first: ast.expr, second: ast.expr, words: tuple[str, str]) -> Generator[tuple[str, Place, str]]:
        """The change of the operator between two operands; brackets and line breaks may stand between them too."""
        start, end = self._place(first)[1], self._place(second)[0]
        between = self._source[start:end].decode()
        at = between.find(words[0])
        if at >= 0 and "#" not in between:
            begin = start + len(between[:at].encode())
            yield name, (begin, begin + len(words[0])), words[1]

    def _place(self, node: ast.expr | ast.stmt) -> Place:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr) -> str:
        first, after = self._place(node)
        return self._source[first:after].decode()

    def _mutant(self, operator: str, place: Place, replacement: str) -> Mutant:
        line = bisect.bisect_right(self._starts, place[0])
        first, end = self._starts[line - 1], self._starts[line]
        before = self._source[first:end].decode().strip()
        after = self._source[first : place[0]].decode() + replacement + self._source[place[1] : max(end, place[1])].decode()
        return Mutant(self._module, ".".join(self._names), operator, line, before, after.splitlines()[0].strip(), place, replacement)
