"""Ink: what a picture is drawn with: colours by role, dashes and marks."""

from __future__ import annotations

# Colours that people with any colour vision tell apart (after Okabe and Ito 2008), and a dash to each.
_LIGHT = ("#0069b4", "#c84800", "#007a5a", "#a3457e", "#9a6700", "#2a8fbd", "#5b5b5b", "#7b3fb5")
_DARK = ("#5cb2f0", "#ff9358", "#3ccfa0", "#ec9dca", "#ecc04c", "#8bd8ff", "#bdbdbd", "#c3a0f5")
SERIES = tuple(f"s{number}" for number in range(1, len(_LIGHT) + 1))  # roles of curves, in turn
# A dash is what is drawn, left out, drawn, ..., in widths of the line.
DASHES: tuple[tuple[float, ...], ...] = (
    (), (5, 1.6), (1.4, 1.4), (6, 1.6, 1.4, 1.6), (9, 2), (3, 1, 1, 1, 1, 1), (2.5, 2.5), (7, 1, 1, 1),
)  # fmt: skip
# A mark is its corners, the angle of the first in degrees, and the radius of every other one (of a star < 1).
MARKERS: tuple[tuple[int, float, float], ...] = (
    (20, 0, 1), (4, 45, 1), (3, -90, 1), (4, 0, 1), (3, 90, 1), (10, -90, 0.45), (8, 45, 0.45), (5, -90, 1),
)  # fmt: skip

# A page's variables have the names of these roles; `band` is behind what stands out, `faint` labels axes.
LIGHT = {
    "paper": "#ffffff", "text": "#1d2329", "faint": "#59636e", "grid": "#e2e6ea", "band": "#eef3f8",
    "wait": "#b3bac2", "prefill": "#c84800", "decode": "#0069b4", "failed": "#c01048",
    **dict(zip(SERIES, _LIGHT, strict=True)),
}  # fmt: skip
DARK = {
    "paper": "#15191e", "text": "#e4e8ec", "faint": "#9aa5b0", "grid": "#2b323a", "band": "#1d2732",
    "wait": "#5a6570", "prefill": "#ff9358", "decode": "#5cb2f0", "failed": "#ff6b93",
    **dict(zip(SERIES, _DARK, strict=True)),
}  # fmt: skip
