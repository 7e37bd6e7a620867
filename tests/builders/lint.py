"""Rules of the sources: each file is parsed once, and each rule is one test that lists every offender."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLIENT = sorted(ROOT.glob("loadgen/**/*.py"))
SERVERS = sorted(ROOT.glob("servers/**/*.py"))
CODE = [*CLIENT, *SERVERS, *sorted(ROOT.glob("benchmarks/**/*.py"))]
TESTS = sorted(ROOT.glob("tests/**/*.py"))


@dataclass(frozen=True)
class Source:
    """A module as it is written."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        """Its path below the root."""
        return str(self.path.relative_to(ROOT))

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return [node for node in self.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]

    @cached_property
    def docstrings(self) -> set[int]:
        """The identities of the docstrings' nodes."""
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        return {
            id(node.body[0].value)
            for node in self.nodes
            if isinstance(node, kinds) and node.body and isinstance(node.body[0], ast.Expr)
        }

    @cached_property
    def imports(self) -> frozenset[str]:
        """The full names of the modules it imports, inside functions too; a dot begins a relative one."""
        found = set()
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
        return frozenset(found)


Rule = Callable[[Source], Iterable[str]]
RULES: dict[str, tuple[Rule, frozenset[Path]]] = {}  # by name, with the sources that a rule is for


def of_each(paths: Iterable[Path]) -> Callable[[Rule], Callable[[], None]]:
    """Make a rule, which yields what is wrong with a source, into a test of all these sources."""

    def as_test(rule: Rule) -> Callable[[], None]:
        name = rule.__name__
        RULES[name] = rule, frozenset(paths)

        def test() -> None:
            offenders = survey().offenders[name]
            assert not offenders, "\n".join([f"{len(offenders)} offenders:", *offenders])

        test.__doc__ = rule.__doc__
        return test

    return as_test


@dataclass
class Survey:
    """What was seen in one pass over all sources."""

    offenders: dict[str, list[str]]  # by the name of the rule
    imports: dict[Path, frozenset[str]] = field(default_factory=dict)  # of the client
    classes: list[str] = field(default_factory=list)  # of the client


@cache
def survey() -> Survey:
    """Apply every rule to every source that it is for; no syntax tree outlives its turn."""
    found = Survey({name: [] for name in RULES})
    for source in _sources():
        for name, (rule, paths) in RULES.items():
            if source.path in paths:
                found.offenders[name] += [f"{source.name}: {offence}" for offence in rule(source)]
        if source.path.is_relative_to(ROOT / "loadgen"):
            found.imports[source.path] = source.imports
            found.classes += [node.name for node in source.nodes if isinstance(node, ast.ClassDef)]
    return found


def _sources() -> Iterator[Source]:
    for path in sorted({*CODE, *TESTS}):
        yield Source(path, path.read_text("utf-8"))
