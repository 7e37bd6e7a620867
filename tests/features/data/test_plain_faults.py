"""Plain faults: a value that is not what was expected is shown, with what to give in its place."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest

from builders.loops import loop_over
from loadgen.plan import json_lines


class _Nested(msgspec.Struct):
    t: Annotated[float, msgspec.Meta(gt=0, lt=10.5)] = 1.0
    flag: bool | None = None


class _Row(msgspec.Struct, rename={"size": "in.put"}):
    name: Annotated[str, msgspec.Meta(min_length=1)] = "a"
    many: Annotated[tuple[int, ...], msgspec.Meta(max_length=2)] = ()
    nested: list[_Nested] = []
    by_name: dict[str, int] = {}
    size: int = 0


@loop_over(
    ("row", "kind", "name", "text"),
    [
        (b'{"nested": [{}, {"t": 0.0}]}', _Row, "", "nested[1].t is 0.0: give more than 0"),
        (b'{"nested": [{"t": 10.5}]}', _Row, "", "nested[0].t is 10.5: give less than 10.5"),
        (b'{"nested": [{"flag": 1}]}', _Row, "row", "row.nested[0].flag is 1: give true or false"),
        (b'{"name": ""}', _Row, "", 'name is "": it must not be empty'),
        (b'{"name": [1,  2]}', _Row, "", "name is [1,  2]: give a text"),
        (b'{"name": {"' + b"a" * 90 + b'": 1}}', _Row, "", f'name is {{"{"a" * 38}…: give a text'),
        (b'{"by_name": {"a": "b"}}', _Row, "", "by_name[...]: give a whole number"),
        (b'{"in.put": "b"}', _Row, "", "in.put: give a whole number"),
        (b'{"many": [1, 2, 3]}', _Row, "", "many: Expected `array` of length <= 2"),
        (b"5", _Row, "", "is 5: give an object"),
        (b"5", str | list[int], "prompt", "prompt is 5: give a text or a list"),
        (b"null", float, "t", "t is null: give a number"),
    ],
)
def test_a_value_is_shown_with_what_to_give(row: bytes, kind: Any, name: str, text: str) -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.json.decode(row, type=kind)
    assert json_lines.explain_fault(raised.value, row, name) == text
