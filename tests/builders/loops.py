"""Tables of cases that one test walks, where an item of pytest for each row would say no more."""

from __future__ import annotations

import functools
import inspect
import json
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

Test = Callable[..., None]
_NAMED = type(pytest.param())
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200  # letters: enough to find the row
_STORED = Path(__file__).parents[1] / "cases"


def loop_over(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test once for each row, as `parametrize` does, but as one item that reports every row that fails.

    A row is a value or a tuple of values, or `pytest.param(…, id=…)`, which gives it a name.
    `monkeypatch`, `tmp_path` and `capsys` are as new for each row; any other fixture is shared by all rows.
    """
    keys = (names,) if isinstance(names, str) else names
    table = list(rows)
    assert table, "a loop over no rows tests nothing"

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def loop(**fixtures: Any) -> None:
            failed: list[BaseException] = []
            for number, row in enumerate(table):
                name, values = _named(row, len(keys))
                try:
                    with _as_new(fixtures, number) as given:
                        test(**given, **dict(zip(keys, values, strict=True)))
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"row {number}: {name}")
                    failed.append(error)
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(table)} rows failed", failed)

        signature = inspect.signature(test)
        assert set(keys) <= set(signature.parameters), f"{test.__name__} has no parameters {keys}"
        fixtures = [each for name, each in signature.parameters.items() if name not in keys]
        loop.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return loop

    return decorate


def loop_over_named(names: str | tuple[str, ...], rows: Mapping[str, Any]) -> Callable[[Test], Test]:
    """Run a test once for each row, as `loop_over` does; the rows' keys are their names."""
    several = not isinstance(names, str) and len(names) > 1
    return loop_over(
        names, [pytest.param(*(row if several else [row]), id=name) for name, row in rows.items()]
    )


def read_tables(name: str) -> Any:
    """The tables of a module of tests whose rows are plain data: tests/cases/NAME.json, a row a line."""
    return json.loads((_STORED / f"{name}.json").read_text("utf-8"))


def _named(row: Any, keys: int) -> tuple[str, tuple[Any, ...]]:
    if isinstance(row, _NAMED):
        assert not row.marks, "a row of a loop has no marks"
        return str(row.id), tuple(row.values)
    values = tuple(row) if keys > 1 else (row,)
    return ", ".join(map(_SHORT.repr, values)), values


@contextmanager
def _as_new(fixtures: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    given = dict(fixtures)
    if "capsys" in given:
        given["capsys"].readouterr()
    if "tmp_path" in given:
        given["tmp_path"] = fixtures["tmp_path"] / f"row{number}"
        given["tmp_path"].mkdir()
    with pytest.MonkeyPatch.context() as patches:
        if "monkeypatch" in given:
            given["monkeypatch"] = patches
        yield given
