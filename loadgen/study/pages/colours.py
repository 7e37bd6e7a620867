"""Colours: those of pages and pictures, light and dark, and the pens that draw curves."""

from __future__ import annotations

from typing import NamedTuple

from loadgen.base.passages import Panel
from loadgen.features.attribution.attribution import PARTS

# Colours that people with any colour vision tell apart (after Okabe and Ito 2008), each with a dash.
_LIGHT_SERIES = ("#0069b4", "#c84800", "#007a5a", "#a3457e", "#9a6700", "#2a8fbd", "#5b5b5b", "#7b3fb5")
_DARK_SERIES = ("#5cb2f0", "#ff9358", "#3ccfa0", "#ec9dca", "#ecc04c", "#8bd8ff", "#bdbdbd", "#c3a0f5")
_SERIES = tuple(f"s{number}" for number in range(1, len(_LIGHT_SERIES) + 1))
_DASHES: tuple[tuple[float, ...], ...] = (
    (), (5, 1.6), (1.4, 1.4), (6, 1.6, 1.4, 1.6), (9, 2), (3, 1, 1, 1, 1, 1), (2.5, 2.5), (7, 1, 1, 1),
)  # fmt: skip
_MARKS = ((20, 0, 0), (4, 0, 45), (3, 0, 0), (4, 0, 0), (3, 0, 180), (5, 1, 0), (4, 1, 45), (5, 0, 0))
SHADES = {part.key: f"part-{part.key}" for part in PARTS}  # of a wait: violet, greens, yellows, blues, grey
_LIGHT_SHADES = (
    "#7b3fb5", "#b792db", "#3d8f73", "#8fd0b4", "#0b6e4f", "#12a37a", "#5ec2b0", "#a3d9c0", "#d9a927",
    "#9a6700", "#0069b4", "#a9d0f2", "#0a3a66", "#4d5fd1", "#2484d6", "#b3bac2",
)  # fmt: skip
_DARK_SHADES = (
    "#c3a0f5", "#7d5fb0", "#2f9c7a", "#1d6b52", "#8be0bf", "#3ccfa0", "#4f9c82", "#226f57", "#8a6a1c",
    "#ecc04c", "#5cb2f0", "#2b5f8c", "#7fd3ea", "#8f9cff", "#4aa0e6", "#5a6570",
)  # fmt: skip
# A page's variables have the names of these roles; `band` is behind what stands out, `faint` labels axes. The
# last five are the page's alone: raised ground, links, and what is good, doubtful, bad.
LIGHT = {
    "paper": "#ffffff", "text": "#1d2329", "faint": "#59636e", "grid": "#e2e6ea", "band": "#eef3f8",
    "wait": "#b3bac2", "prefill": "#c84800", "decode": "#0069b4", "failed": "#c01048",
    **dict(zip(_SERIES, _LIGHT_SERIES, strict=True)),
    **dict(zip(SHADES.values(), _LIGHT_SHADES, strict=True)),
    "raised": "#f6f8fa", "link": "#005a9e", "good": "#00694d", "warn": "#9a4a00", "bad": "#b3093c",
}  # fmt: skip
DARK = {
    "paper": "#15191e", "text": "#e4e8ec", "faint": "#9aa5b0", "grid": "#2b323a", "band": "#1d2732",
    "wait": "#5a6570", "prefill": "#ff9358", "decode": "#5cb2f0", "failed": "#ff6b93",
    **dict(zip(_SERIES, _DARK_SERIES, strict=True)), **dict(zip(SHADES.values(), _DARK_SHADES, strict=True)),
    "raised": "#1b2027", "link": "#79bdf5", "good": "#4ed3a8", "warn": "#ffab70", "bad": "#ff7c9f",
}  # fmt: skip


class Pen(NamedTuple):
    """How a curve is drawn: its colour's role, dash in widths of the line, and mark as matplotlib has it."""

    colour: str
    dash: tuple[float, ...]
    mark: tuple[int, int, float]  # corners, 1 if it is a star, degrees that it is turned


_PENS = tuple(map(Pen, _SERIES, _DASHES, _MARKS))


def list_pens(panel: Panel) -> list[Pen]:
    """List the pen of each curve, of one that belongs to another that one's; they repeat after eight."""
    places = (index if curve.of is None else curve.of for index, curve in enumerate(panel.curves))
    return [_PENS[place % len(_PENS)] for place in places]
