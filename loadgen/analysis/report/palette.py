"""Ink: what a picture is drawn with: real colours for files, names of a page's colours for the page."""

from __future__ import annotations

import msgspec

# Colours that people with any colour vision tell apart (after Okabe and Ito 2008), and a dash to each.
_LIGHT = ("#0069b4", "#c84800", "#007a5a", "#a3457e", "#9a6700", "#2a8fbd", "#5b5b5b", "#7b3fb5")
_DARK = ("#5cb2f0", "#ff9358", "#3ccfa0", "#ec9dca", "#ecc04c", "#8bd8ff", "#bdbdbd", "#c3a0f5")
DASHES: tuple[tuple[float, tuple[float, ...] | None], ...] = (
    (0, None), (0, (5, 1.6)), (0, (1.4, 1.4)), (0, (6, 1.6, 1.4, 1.6)),
    (0, (9, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (2.5, 2.5)), (0, (7, 1, 1, 1)),
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")


class Ink(msgspec.Struct, frozen=True):
    """Colours as `#rrggbb`; `series` go round."""

    paper: str
    text: str
    faint: str  # labels of axes
    grid: str
    band: str  # behind what stands out
    wait: str
    prefill: str
    decode: str
    failed: str
    series: tuple[str, ...]

    def named(self) -> dict[str, str]:
        """Each colour by the name of the page's variable for it."""
        roles = ("paper", "text", "faint", "grid", "band", "wait", "prefill", "decode", "failed")
        return {f"--{role}": getattr(self, role) for role in roles} | {
            f"--s{index}": colour for index, colour in enumerate(self.series, 1)
        }


LIGHT = Ink(
    paper="#ffffff", text="#1d2329", faint="#59636e", grid="#e2e6ea", band="#eef3f8",
    wait="#b3bac2", prefill="#c84800", decode="#0069b4", failed="#c01048", series=_LIGHT,
)  # fmt: skip
DARK = Ink(
    paper="#15191e", text="#e4e8ec", faint="#9aa5b0", grid="#2b323a", band="#1d2732",
    wait="#5a6570", prefill="#ff9358", decode="#5cb2f0", failed="#ff6b93", series=_DARK,
)  # fmt: skip
# Of no use to the eye: each stands for one of the page's variables until the page is written.
PLACES = Ink(
    paper="#f0015e", text="#f0025e", faint="#f0035e", grid="#f0045e", band="#f0055e",
    wait="#f0065e", prefill="#f0075e", decode="#f0085e", failed="#f0095e",
    series=tuple(f"#f1{number:02x}5e" for number in range(1, len(_LIGHT) + 1)),
)  # fmt: skip
