"""The servers and the benchmarks: neither their modules nor their folders import in a circle."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from builders.loops import loop_over

ROOT = Path(__file__).parents[2]


def imported(package: Path, source: Path) -> Iterator[str]:
    """The modules of the package that one of them imports."""
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == package.name:
            inside = node.module.split(".")[1:]
            for names in (inside, *([*inside, alias.name] for alias in node.names)):
                if names and package.joinpath(*names).with_suffix(".py").is_file():
                    yield "/".join(names)


@loop_over("package", [ROOT / "servers" / "loadgen_servers", ROOT / "benchmarks"])
def test_no_import_goes_round_in_a_circle(package: Path) -> None:
    modules, folders = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for source in package.rglob("*.py"):
        module = source.relative_to(package).with_suffix("").as_posix()
        for target in imported(package, source):
            modules[module].add(target)
            folders[module.rpartition("/")[0]].add(target.rpartition("/")[0])
    assert len(modules) > 10
    TopologicalSorter(modules).prepare()
    TopologicalSorter({folder: named - {folder} for folder, named in folders.items()}).prepare()
