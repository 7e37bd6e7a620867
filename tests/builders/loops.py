"""Tables of cases that one test walks, where an item of pytest for each row would say no more."""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

Test = Callable[..., None]
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200  # letters: enough to find the row


def loop_over(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test once for each row, as `parametrize` does, but as one item that reports every row that fails.

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
                values = (row,) if isinstance(names, str) else row
                try:
                    with _as_new(fixtures, number) as given:
                        test(**given, **dict(zip(keys, values, strict=True)))
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"row {number}: {', '.join(map(_SHORT.repr, values))}")
                    failed.append(error)
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(table)} rows failed", failed)

        signature = inspect.signature(test)
        assert set(keys) <= set(signature.parameters), f"{test.__name__} has no parameters {keys}"
        fixtures = [each for name, each in signature.parameters.items() if name not in keys]
        loop.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return loop

    return decorate


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
