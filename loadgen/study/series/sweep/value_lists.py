"""Value lists: `1,2,4…512` and `input_len=512,2048` as they are written on a command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

from loadgen.base import bounds
from loadgen.base.text import quote_value
from loadgen.plan.profile import Profile
from loadgen.study.series.points.typed_values import typed

_ELLIPSIS = re.compile(r"\s*,?\s*(?:…|\.\.\.)\s*,?\s*")
_MOST_VALUES = 1000
_LEAST_STEPPED = 3  # numbers whose equal distances mean steps; of two the ratio is continued
_LONGEST_NUMBER = 40  # characters
# Keys of which one value may hold commas.
_WITH_COMMAS = ("input_dist", "output_dist", "slo")
_BETWEEN = ";"  # values that hold commas; then … is a text as any other
_OPENING, _CLOSING = "[{", "]}"  # of JSON, inside which a comma parts no values


def numbers(text: str) -> tuple[int | float, ...]:
    """The numbers of a list; `…` continues it up to the number behind it, which is the last.

    Three numbers or more at one distance go on in such steps, all others by their ratio: 1,2,4…512 doubles,
    8,16,24…64 adds 8. Whole numbers stay whole. Raises ValueError.
    """
    begun, *rest = _ELLIPSIS.split(text.strip())
    if len(rest) > 1:
        raise ValueError(f"{quote_value(text)}: one … is enough: write 1,2,4…512")
    if rest and not begun:
        raise ValueError(f"{quote_value(text)}: two numbers before the … show how it goes on, as in 1,2…64")
    if rest and not rest[0]:
        raise ValueError(
            f"{quote_value(text)}: the last number is missing: write it behind the …, as in 1,2…64"
        )
    first = [_number(word, text) for word in _parts(begun, text, ",")]
    found = first if not rest else _continued(first, _number(rest[0], text), text)
    if twice := next((value for at, value in enumerate(found) if value in found[:at]), None):
        raise ValueError(
            f"{quote_value(text)}: {_plain(twice)} is listed twice: --repeat measures points again"
        )
    return tuple(map(_plain, found))


def _continued(first: Sequence[Fraction], end: Fraction, text: str) -> list[Fraction]:
    """The numbers up to the last one; raises ValueError."""
    if len(first) < 2:
        raise ValueError(f"{quote_value(text)}: two numbers before the … show how it goes on, as in 1,2…64")
    if any(value <= 0 for value in (*first, end)):
        raise ValueError(f"{quote_value(text)}: give numbers above 0")
    steps = {after - before for before, after in pairwise(first)}
    ratios = {after / before for before, after in pairwise(first)}
    stepped = len(first) >= _LEAST_STEPPED and len(steps) == 1
    if not stepped and len(ratios) > 1:
        raise ValueError(
            f"{quote_value(text)}: the numbers before the … have neither one ratio nor one distance"
        )
    step, ratio = steps.pop(), ratios.pop()
    up = step > 0
    if step == 0 or (end > first[-1]) is not up:
        raise ValueError(f"{quote_value(text)}: {_plain(end)} is never reached from {_plain(first[-1])}")
    whole = all(value.denominator == 1 for value in (*first, end))
    found, exact = list(first), first[-1]
    while True:
        exact = exact + step if stepped else exact * ratio
        value = Fraction(round(exact)) if whole else exact
        if (value >= end) is up or value == end:
            return [*found, end]
        if value != found[-1]:
            found.append(value)
        if len(found) >= _MOST_VALUES:
            raise ValueError(f"{quote_value(text)}: has more than {_MOST_VALUES} numbers")


def _parts(listed: str, text: str, between: str) -> list[str]:
    """The values of a list, none of them empty; raises ValueError that quotes the whole `text`."""
    if not listed.strip():
        raise ValueError(f"{quote_value(text)}: the list is empty: write values, as 1,2,4")
    parts = [part.strip() for part in listed.split(between)]
    if not all(parts):
        sign = {",": "comma", _BETWEEN: "semicolon"}[between]
        raise ValueError(f"{quote_value(text)}: a value is missing before or behind a {sign}")
    return parts


def _number(word: str, text: str) -> Fraction:
    """A number that a figure can be: of one like 1e999999999 the fraction would fill the memory."""
    try:
        value = Decimal(word if len(word) <= _LONGEST_NUMBER else "")
        plain = float(value)
    except (ArithmeticError, ValueError):
        is_range = any(sign in word for sign in ("..", "-", ":"))
        how = ": two numbers before a … show how it goes on, as in 1,2…64" if is_range else ""
        raise ValueError(f"{quote_value(text)}: {quote_value(word)} is not a number{how}") from None
    if not value:
        return Fraction(0)
    if not bounds.read_figure(plain):
        raise ValueError(f"{quote_value(text)}: {quote_value(word)}: give numbers from 1e-15 to 1e15")
    return Fraction(value)


def _plain(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)


def named(text: str) -> tuple[str, str]:
    """The name and the list of `NAME=V1,V2`; raises ValueError where it is written otherwise."""
    name, equals, values = text.partition("=")
    if not equals or not name.strip() or not values.strip():
        raise ValueError(f"{quote_value(text)}: write NAME=VALUE,VALUE, as input_len=512,2048")
    return name.strip(), values


def of_field(name: str, text: str) -> tuple[Any, ...]:
    """The values of a profile's key: numbers, which `…` may continue, or words; raises ValueError."""
    if name in _WITH_COMMAS and "," in text and _BETWEEN not in text:
        raise ValueError(
            f"{name}: its values may hold commas: write {_BETWEEN} between them, as {_BETWEEN.join('AB')}, "
            f"and behind a single one"
        )
    if Profile.model_fields[name].annotation is str:
        return words(text)
    if _ELLIPSIS.search(text):
        return numbers(text)
    return tuple(map(typed, words(text)))


def words(text: str) -> tuple[str, ...]:
    """The values as words, between commas, or semicolons where there are any; raises ValueError.

    A list of numbers may have a `…`.
    """
    if _BETWEEN in text:
        return tuple(_parts(text.strip().removesuffix(_BETWEEN), text, _BETWEEN))
    if _ELLIPSIS.search(text):
        return tuple(map(str, numbers(text)))
    found = _parts(text, text, ",")
    if any(_torn(word) for word in found):
        raise ValueError(f"{quote_value(text)}: a value holds a comma: write {_BETWEEN} between the values")
    return tuple(found)


def _torn(word: str) -> bool:
    """Whether a word is a part of JSON that a comma inside it has torn."""
    opened, closed = (sum(map(word.count, signs)) for signs in (_OPENING, _CLOSING))
    return opened != closed
