"""Numbers: figures as people write them, with their country's signs, where these are unambiguous."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from decimal import Decimal

from loadgen.base import bounds
from loadgen.base.errors import UsageError

_SPACES = "\u00a0\u2007\u2009\u202f"
_APOSTROPHES = "'\u2019"
_MINUS = "\u2212\u2013"  # as typesetting has it: before a digit they are one
# Digits, then groups of three behind a sign of grouping (a plain space is one), a decimal part, an exponent.
PATTERN = re.compile(
    rf"[-+{_MINUS}]?(?:\d{{1,3}}(?:[ {_SPACES}{_APOSTROPHES}]\d{{3}}(?!\d))+(?:[.,]\d+)?|\d+(?:[.,]\d+)*)"
    r"(?:[eE][-+]?\d+)?"
)
_LONGEST = 40  # characters of a figure
_MOST_DECIMALS = 6  # above which a figure is taken as exact
_GROUPED = re.compile(rf"(?<=\d)[ {_SPACES}{_APOSTROPHES}](?=\d)")


class AmbiguousError(UsageError):
    """A number that is one thing here and another elsewhere: 1.234."""


class ComputedNumber(float):
    """A figure that was computed from a printed one, with what one unit of that one's last digit is in it."""

    last_digit: float = 0.0

    @classmethod
    def of(cls, value: float, last_digit: float) -> ComputedNumber:
        """Scale a printed figure and its last digit: 4.1 s is 4100 ms, and 100 ms either way."""
        made = cls(value)
        made.last_digit = last_digit
        return made


def last_digit_of(value: float) -> float:
    """Return one unit of the last digit that was printed of a figure; 0 of one that is taken as exact.

    Trailing zeros are lost with the text, so 23.00 is taken as 23.0: wider, never narrower.
    """
    if isinstance(value, ComputedNumber):
        return value.last_digit
    if not math.isfinite(value):
        return 0.0
    decimals = -int(Decimal(repr(value)).as_tuple().exponent)
    return 0.0 if decimals > _MOST_DECIMALS else 10.0 ** -max(decimals, 0)


def scale_figure(value: float, times: float) -> float:
    """Scale a printed figure to another unit."""
    if times == 1.0:
        return value
    return ComputedNumber.of(float(f"{value * times:.12g}"), last_digit_of(value) * times)


def milliseconds_each(per_s: float) -> float:
    """Return the time of each, of a printed rate per second."""
    each_ms = 1e3 / per_s
    return ComputedNumber.of(each_ms, last_digit_of(per_s) * each_ms / per_s)


def find_decimal_sign(written: Iterable[str]) -> str:
    """Find the decimal sign that the unambiguous ones of these numbers share; "" if none shows it."""
    signs = {sign for number_text in written if (sign := _sign(number_text))}
    return signs.pop() if len(signs) == 1 else ""


def parse_number(written: str, sign: str = "") -> float:
    """Parse the number; `sign` settles what is ambiguous. Raises AmbiguousError, and ValueError of no number.

    1.234,56 and 1,234.56 and 1 234,56 and 1'234.56 are one number. 1.234 and 1,234 are two, unless other
    numbers of the page show which sign is the decimal one.
    """
    if len(written) > _LONGEST:
        raise ValueError(f"{written[:_LONGEST]}… has too many digits")
    plain = re.sub(f"^[{_MINUS}]", "-", _GROUPED.sub("", written.strip()))
    points, commas = plain.count("."), plain.count(",")
    decimal = _sign(written)
    if not decimal and points + commas == 1:
        if not sign:
            raise AmbiguousError(
                f"{written} is ambiguous: the sign in it may group digits or begin the decimals"
            )
        decimal = sign
    for grouping in {".", ","} - {decimal}:
        groups = rf"[-+]?\d{{1,3}}(?:\{grouping}\d{{3}})+"
        fraction = rf"(?:\{decimal}[^{grouping}]*)?" if decimal else ""
        if grouping in plain and not re.fullmatch(groups + fraction, plain):
            raise ValueError(f"{plain} is not a number")
        plain = plain.replace(grouping, "")
    value = bounds.read_figure(float(plain.replace(decimal, ".") if decimal else plain))
    if value is None:
        raise ValueError(f"{plain} is out of bounds")
    return int(value) if not decimal and float(value).is_integer() else value


def _sign(written: str) -> str:
    """The decimal sign of one number, "" if it has none or is ambiguous."""
    plain = re.sub(r"[eE][-+]?\d+$", "", _GROUPED.sub("", written.strip()).lstrip(f"+-{_MINUS}"))
    grouped = plain != written.strip().lstrip(f"+-{_MINUS}") and not re.search(r"[eE]", written)
    signs = [letter for letter in plain if letter in ".,"]
    if not signs:
        return ""
    if len(set(signs)) == 2:  # the last one, where it is alone
        return signs[-1] if signs.count(signs[-1]) == 1 else ""
    if len(signs) > 1:
        return ""  # 1.234.567: both are groups
    whole, _, fraction = plain.partition(signs[0])
    telling = grouped or len(fraction) != 3 or len(whole) > 3 or whole.startswith("0")
    return signs[0] if telling else ""
