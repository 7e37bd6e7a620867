"""Folder table: each folder of loadgen with its docstring, and the modules of it that others import most."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

_PACKAGE, _RULES = (Path(__file__).parent.parent / name for name in ("loadgen", "tests/test_tree.py"))
_MOST = 4  # modules that are named


def read_order() -> list[str]:
    """Read the folders in the order of imports, as tests/test_tree.py holds it."""
    tree = ast.parse(_RULES.read_text("utf-8"))
    (order,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FOLDERS"
    )
    return [str(name) for name in order]


def list_folders() -> Iterator[tuple[str, str, Sequence[str]]]:
    """Each folder, then those in it: its name, its docstring's first line, its most imported modules."""
    order = read_order()
    trees = {path: ast.parse(path.read_text("utf-8")) for path in _PACKAGE.rglob("*.py")}
    imports = Counter(name for tree in trees.values() for name in _find_imports(tree))
    names = (path.parent.relative_to(_PACKAGE) for path in trees if path.name == "__init__.py")
    folders = [name for name in names if name.parts]
    for folder in sorted(folders, key=lambda name: (order.index(name.parts[0]), name)):
        line = (ast.get_docstring(trees[_PACKAGE / folder / "__init__.py"]) or "").partition("\n")[0]
        modules = sorted(path.stem for path in (_PACKAGE / folder).glob("[a-z]*.py"))
        dotted = ".".join(("loadgen", *folder.parts))
        most = sorted(modules, key=lambda name: -imports[f"{dotted}.{name}"])[:_MOST]
        yield folder.as_posix(), re.sub(r"^[\w-]+: ", "", line).rstrip("."), most


def _find_imports(tree: ast.AST) -> Iterator[str]:
    """The names of modules that a source imports, and of all that it imports from them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
