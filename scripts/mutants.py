"""Seeded mutants: `python scripts/mutants.py RESULT.json --in GLOB… --tests PATH… [-n 200]`.

Changes one operator, constant, comparison or statement at a time, in memory, and runs the unit tests that
enter the changed function, the most specific first, until one fails. RESULT.json has a row a mutant: the
function, the line before and after, and whether it was killed. A run that was stopped goes on where it was.
`--same-as FILE` makes the mutants of an earlier result again, wherever their functions are now, and names
those that no longer exist.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

REPO = Path(__file__).resolve().parent.parent
SETTINGS = (REPO / "pyproject.toml").read_text("utf-8")
NOT_UNIT = ("realtime", "slow", "engine", "whole", "long")
UNIT = " and ".join(f"not {mark}" for mark in NOT_UNIT if f'"{mark}:' in SETTINGS)
SECONDS = 1.0  # of a test that is run for a mutant
BUDGET_S = 20.0  # of all tests of one mutant
PATIENCE_S = 90  # until a mutant that makes a test hang counts as killed
SWAPPED: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip
Mutant = dict[str, Any]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def list_functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """Each function of a module with its qualified name; those inside functions are part of these."""
    for node in tree.body:
        if isinstance(node, Function):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, Function):
                    yield f"{node.name}.{inner.name}", inner


def list_changes(function: Function) -> Iterator[tuple[ast.AST, str]]:
    """Each node of a function that may be changed, on one line, with the text in its place."""
    notes = {id(inner) for node in list_annotations(function) for inner in ast.walk(node)}
    for node in ast.walk(function):
        if id(node) in notes or getattr(node, "lineno", 0) != getattr(node, "end_lineno", -1):
            continue
        other = copy.deepcopy(node)
        if isinstance(other, ast.Compare) and type(other.ops[0]) in SWAPPED:
            other.ops[0] = SWAPPED[type(other.ops[0])]()
        elif isinstance(other, ast.BinOp | ast.BoolOp) and type(other.op) in SWAPPED:
            other.op = SWAPPED[type(other.op)]()
        elif (
            isinstance(other, ast.Constant)
            and isinstance(other.value, int | float)
            and not isinstance(other.value, bool)
        ):
            other.value += 1
        elif isinstance(other, ast.UnaryOp) and isinstance(other.op, ast.Not):
            other = other.operand
        elif isinstance(other, ast.AugAssign) or (
            isinstance(other, ast.Expr) and isinstance(other.value, ast.Call)
        ):
            yield node, "pass"
            continue
        else:
            continue
        text = ast.unparse(other)
        yield node, f"({text})" if isinstance(node, ast.BinOp | ast.BoolOp | ast.Compare) else text


def list_annotations(function: Function) -> Iterator[ast.AST]:
    """List the nodes of a function that do not change what it does: annotations and decorators."""
    arguments = function.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if argument.annotation:
            yield argument.annotation
    yield from ([function.returns] if function.returns else []) + function.decorator_list
    yield from (node.annotation for node in ast.walk(function) if isinstance(node, ast.AnnAssign))


def change_line(line: str, node: Any, text: str) -> str:
    """A line of source with the node's text replaced; columns are bytes."""
    data = line.encode()
    return (data[: node.col_offset] + text.encode() + data[node.end_col_offset :]).decode()


def make_mutants(globs: Sequence[str], number: int, seed: int) -> list[Mutant]:
    """As many mutants as asked for, drawn evenly over the globs."""
    drawn = random.Random(seed)
    mutants: list[Mutant] = []
    for place, glob in enumerate(globs):
        every: list[Mutant] = []
        for path in sorted(REPO.glob(glob)):
            source = path.read_text("utf-8")
            lines = source.splitlines()
            for name, function in list_functions(ast.parse(source)):
                start = function.lineno
                for node, text in list_changes(function):
                    at: int = node.lineno  # type: ignore[attr-defined]
                    old, new = lines[at - 1], change_line(lines[at - 1], node, text)
                    same = [line.strip() for line in lines[start - 1 : at - 1]].count(old.strip())
                    every.append(
                        {
                            "file": str(path.relative_to(REPO)),
                            "function": name,
                            "line": at,
                            "old": old.strip(),
                            "new": new.strip(),
                            "nth": same,
                        }
                    )
        count = (number * (place + 1)) // len(globs) - (number * place) // len(globs)
        mutants += drawn.sample(every, min(count, len(every)))
    return mutants


def find_again(mutants: Sequence[Mutant]) -> None:
    """Give mutants the file and line where their function is now; "" and no line where it is gone."""
    places: list[tuple[str, str, int, list[str]]] = []
    for path in sorted((REPO / "loadgen").rglob("*.py")):
        source = path.read_text("utf-8")
        lines = [line.strip() for line in source.splitlines()]
        for name, function in list_functions(ast.parse(source)):
            body = lines[function.lineno - 1 : function.end_lineno]
            places.append((str(path.relative_to(REPO)), name, function.lineno, body))
    for mutant in mutants:
        mutant.pop("result", None)
        holding = [place for place in places if place[3].count(mutant["old"]) > mutant["nth"]]
        last = mutant["function"].rsplit(".", 1)[-1]
        named = [place for place in holding if place[1] == mutant["function"]] or [
            place for place in holding if place[1].rsplit(".", 1)[-1] == last
        ]
        near = [place for place in named if Path(place[0]).name == Path(mutant["file"]).name] or named
        found = near or (holding if len(holding) == 1 else [])
        if not found:
            mutant["file"] = ""
            continue
        file, name, start, body = found[0]
        at = [number for number, line in enumerate(body) if line == mutant["old"]][mutant["nth"]]
        mutant.update(file=file, function=name, line=start + at)


class Loader:
    """Compiles some modules of the package from other source than their files'."""

    def __init__(self, sources: dict[str, str]) -> None:
        self.sources = sources
        real = SourceFileLoader.get_code

        def get_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
            changed = self.sources.get(loader.path)
            if changed is None:
                return real(loader, fullname)
            return compile(changed, loader.path, "exec", dont_inherit=True)

        SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


ENTERED: set[str] = set()


def instrument(path: Path) -> str:
    """The source of a module whose functions note that they were entered."""
    tree = ast.parse(path.read_text("utf-8"))
    for name, function in list_functions(tree):
        key = f"{path.relative_to(REPO)}:{name}"
        note = ast.parse(f"__import__('sys').mutants_entered.add({key!r})").body
        documented = ast.get_docstring(function) is not None
        function.body[documented:documented] = note
    return ast.unparse(ast.fix_missing_locations(tree))


class Watcher:
    """Notes which functions each passing test enters, and how long it takes."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.tests: dict[str, tuple[float, list[str]]] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        ENTERED.clear()
        yield

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed and report.duration < SECONDS:
            self.tests[report.nodeid] = (round(report.duration, 4), sorted(ENTERED))

    def pytest_sessionfinish(self) -> None:
        self.out.write_text(json.dumps(self.tests), "utf-8")


class Chosen:
    """Runs some of the collected tests only, in their order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.order = {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.order), key=lambda i: self.order[i.nodeid])


def run_pytest(
    arguments: Sequence[str], plugin: object, sources: dict[str, str], patience_s: float
) -> int | None:
    """The exit code of pytest in a forked child; None if it took too long."""
    child = os.fork()
    if child == 0:
        os.setpgrp()
        sys.mutants_entered = ENTERED  # type: ignore[attr-defined]
        Loader(sources)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        code = 70
        try:
            code = int(
                pytest.main(
                    ["-q", "-n", "0", "-p", "no:cacheprovider", "-m", UNIT, *arguments], plugins=[plugin]
                )
            )
        finally:
            os._exit(code)
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, 9)
    os.waitpid(child, 0)
    return None


def watch_tests(files: set[str], tests: Sequence[str], cache: Path) -> dict[str, tuple[float, list[str]]]:
    """The functions of these files that each unit test enters; kept in a file next to the result."""
    known = json.loads(cache.read_text("utf-8")) if cache.exists() else {}
    sources = {str(REPO / file): instrument(REPO / file) for file in files}
    for place in tests:
        if place not in known:
            part = cache.with_suffix(".part")
            part.unlink(missing_ok=True)
            run_pytest([place], Watcher(part), sources, 1800)
            known[place] = json.loads(part.read_text("utf-8")) if part.exists() else {}
            cache.write_text(json.dumps(known), "utf-8")
    return {test: entry for place in known.values() for test, entry in place.items()}


def choose_tests(mutant: Mutant, watched: dict[str, tuple[float, list[str]]]) -> list[str]:
    """The tests that enter a mutant's function, those that enter the fewest others first."""
    key = f"{mutant['file']}:{mutant['function']}"
    those = sorted(
        (len(entered), seconds, test) for test, (seconds, entered) in watched.items() if key in entered
    )
    chosen, spent = [], 0.0
    for _, seconds, test in those:
        spent += seconds + 0.005
        if spent > BUDGET_S:
            break
        chosen.append(test)
    return chosen


def try_mutant(mutant: Mutant, watched: dict[str, tuple[float, list[str]]]) -> str:
    """Killed, survived, or untested where no unit test enters the function."""
    chosen = choose_tests(mutant, watched)
    if not chosen:
        return "untested"
    path = REPO / mutant["file"]
    lines = path.read_text("utf-8").splitlines(keepends=True)
    at = mutant["line"] - 1
    lines[at] = lines[at].replace(mutant["old"], mutant["new"])
    files = sorted({test.split("::")[0] for test in chosen})
    code = run_pytest(["-x", *files], Chosen(chosen), {str(path): "".join(lines)}, PATIENCE_S)
    return "survived" if code == 0 else "killed"


def main() -> int:
    """Try every mutant that has no result yet; 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("result", type=Path)
    parser.add_argument("--in", dest="globs", action="append", default=[], help="files to change")
    parser.add_argument("--tests", nargs="+", required=True, help="test files and folders")
    parser.add_argument("-n", type=int, default=200)
    parser.add_argument("--seed", type=int, default=40)
    parser.add_argument("--same-as", type=Path, help="make the mutants of this result again")
    options = parser.parse_args()
    os.chdir(REPO)
    options.result = options.result.resolve()
    if options.result.exists():
        mutants = json.loads(options.result.read_text("utf-8"))
    elif options.same_as:
        mutants = json.loads(options.same_as.read_text("utf-8"))
        for mutant in mutants:
            mutant["before"] = mutant.get("result")
        find_again(mutants)
    else:
        mutants = make_mutants(options.globs, options.n, options.seed)
    files = {mutant["file"] for mutant in mutants if mutant["file"]}
    watched = watch_tests(files, options.tests, options.result.with_suffix(".tests.json"))
    for number, mutant in enumerate(mutants, 1):
        if "result" not in mutant:
            mutant["result"] = try_mutant(mutant, watched) if mutant["file"] else "gone"
            options.result.write_text(json.dumps(mutants, indent=1, ensure_ascii=False), "utf-8")
            where = f"{mutant['file']}:{mutant['line']} {mutant['function']}"
            print(f"{number} {mutant['result']}: {where}: {mutant['old']} → {mutant['new']}", flush=True)
    print(Counter(mutant["result"] for mutant in mutants))
    worse = [m for m in mutants if m.get("before") == "killed" and m["result"] != "killed"]
    print(
        "\n".join(
            f"{m['before']} before, {m['result']} now: {m['function']}: {m['old']} → {m['new']}"
            for m in worse
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
