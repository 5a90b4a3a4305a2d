"""The package as data for the architecture tests: modules, their syntax trees, and what each imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPO = Path(__file__).parents[2]
SOURCE = REPO / "src"


@dataclass(frozen=True)
class Import:
    """One imported module, as far as the statement tells (`from a import b` gives a.b if that is a module, else a)."""

    target: str
    line: int
    function: str | None
    typing_only: bool


@dataclass(frozen=True)
class Module:
    """One file of the package."""

    name: str
    path: Path
    tree: ast.Module
    num_lines: int

    @property
    def area(self) -> str:
        """The package or top-level file directly under sapwood."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else "sapwood"


@cache
def modules() -> tuple[Module, ...]:
    """Every module of sapwood, sorted by name."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        text = path.read_text(encoding="utf-8")
        found.append(Module(name, path, ast.parse(text), text.count("\n")))
    return tuple(found)


@cache
def module_names() -> frozenset[str]:
    return frozenset(module.name for module in modules())


@cache
def imports(module: Module) -> tuple[Import, ...]:
    """Every import statement of the module, wherever it stands."""
    return tuple(_walk(module, module.tree, None, False))


def _walk(module: Module, node: ast.AST, function: str | None, typing_only: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, function, typing_only) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{module.name}:{child.lineno}: relative import"
            for alias in child.names:
                deeper = f"{child.module}.{alias.name}"
                target = deeper if deeper in module_names() else str(child.module)
                yield Import(target, child.lineno, function, typing_only)
        else:
            inside = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
            guarded = isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
            yield from _walk(module, child, inside, typing_only or guarded)


def functions() -> Iterator[tuple[Module, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function and method of the package, nested ones too."""
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield module, node


def classes() -> Iterator[tuple[Module, ast.ClassDef]]:
    """Every class of the package."""
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                yield module, node


def length(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    """Lines from the first to the last, decorators not counted."""
    return (node.end_lineno or node.lineno) - node.lineno + 1
