"""Every target of `python -m fuzz`: it is there, and reads what is kept of it, also with a part changed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.targets import HERE, TARGETS, corpus, inputs

MOST_BYTES = 600_000  # of the whole corpus
SUSPECTS = [b"", b"\0", b"\xff" * 64, b"[" * 5000, b'{"a":' * 5000, b"9" * 5000]


def function(name: str) -> Callable[[bytes], None]:
    module, _, attribute = TARGETS[name].function.partition(":")
    found: Callable[[bytes], None] = getattr(import_module(module), attribute)
    return found


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_names_what_is_there(name: str) -> None:
    assert callable(function(name))
    assert [find_spec(module) for module in TARGETS[name].instrumented if find_spec(module) is None] == []
    assert inputs(name) != []


def test_the_corpus_is_small_and_belongs_to_targets() -> None:
    files = [path for path in (HERE / "corpus").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    assert {path.parent.name for path in files} <= set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_kept_is_read_and_the_usual_suspects(name: str) -> None:
    read = function(name)
    for raw in (*SUSPECTS, *(path.read_bytes() for path in inputs(name))):
        read(raw)


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_kept_is_read_with_a_part_changed(name: str) -> None:
    read = function(name)
    kept = [path.read_bytes()[: TARGETS[name].longest] for path in sorted(corpus(name).glob("*"))] or [b""]

    @given(st.sampled_from(kept), st.integers(0, 8192), st.binary(max_size=24), st.booleans())
    def changed(raw: bytes, at: int, piece: bytes, over: bool) -> None:
        at %= len(raw) + 1
        read(raw[:at] + piece + raw[at + len(piece) * over :])

    changed()
