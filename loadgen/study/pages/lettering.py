"""Lettering: how wide a text is drawn, names cut to a width, and labels where there is room for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from loadgen.base.layout import cut_middle
from loadgen.study.pages.panel import Floats

# Of DejaVu Sans, the widest that is in use, in shares of the letters' size; what is not here is _OTHER.
_WIDTHS = {
    **dict.fromkeys("ijl'|.,:; ", 0.32),
    **dict.fromkeys("()[]{}ftr-/", 0.40),
    **dict.fromkeys("mwMW%@", 0.98),
    **dict.fromkeys("ABCDEFGHKNOPQRUVXYZ&", 0.72),
    **dict.fromkeys("=+×÷~<>≤±", 0.84),
}
_OTHER = 0.64
_RISE, _FALL = 0.8, 0.22  # of letters over and below their baseline
_NEAR = 5.0  # from a point to its label


def width(text: str, size: float) -> float:
    """Pixels that a line takes, a few too many rather than too few."""
    return size * sum(_WIDTHS.get(letter, _OTHER) for letter in text)


def fitted(name: str, most: float, size: float) -> str:
    """A name in at most `most` pixels, its middle left out."""
    letters = len(name)
    while letters > 1 and width(cut_middle(name, letters), size) > most:
        letters -= 1
    return cut_middle(name, letters)


class Box(NamedTuple):
    """A rectangle that is taken."""

    left: float
    top: float
    right: float
    bottom: float

    @classmethod
    def around(cls, point: Floats, reach: float) -> Box:
        """The square about a point (x, y)."""
        x, y = point.tolist()
        return cls(x - reach, y - reach, x + reach, y + reach)

    def meets(self, other: Box) -> bool:
        """Whether the two have a pixel in common."""
        apart = self.right <= other.left or other.right <= self.left
        return not (apart or self.bottom <= other.top or other.bottom <= self.top)


class Label(NamedTuple):
    """Where a label stands: its baseline's end at `x`, which is `anchor`; "" where there was no room."""

    text: str
    x: float
    y: float
    anchor: str


def placed(
    text: str, point: tuple[float, float], downs: Sequence[float], size: float, ends: tuple[float, float],
    taken: list[Box],
) -> Label:  # fmt: skip
    """A label on the right of a point or on its left, so far down as the first of `downs` that has room.

    `ends` are those of the x axis; what it covers is added to `taken`.
    """
    sides = [(_NEAR, "start"), (-_NEAR, "end")]
    if point[0] > ends[0] + 0.85 * (ends[1] - ends[0]):
        sides.reverse()
    long = width(text, size)
    for down in downs:
        for aside, anchor in sides:
            x, y = point[0] + aside, point[1] + down
            left = x if anchor == "start" else x - long
            box = Box(left, y - _RISE * size, left + long, y + _FALL * size)
            inside = ends[0] <= box.left and box.right <= ends[1] + _NEAR
            if inside and not any(box.meets(other) for other in taken):
                taken.append(box)
                return Label(text, x, y, anchor)
    return Label("", point[0] + sides[0][0], point[1] + downs[0], sides[0][1])
