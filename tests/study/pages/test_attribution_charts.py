"""Attribution charts: every bar is a wait divided into its parts, in colours that both themes have."""

from __future__ import annotations

import numpy as np

from builders import made_attributions as made
from builders import made_runs
from loadgen.features.attribution.parts import PARTS
from loadgen.study.pages import html, run_charts
from loadgen.study.pages.document import compose_document
from loadgen.study.pages.drawing import DARK, LIGHT, SHADES
from loadgen.study.pages.page_parts import Number
from loadgen.study.pages.run_charts import make_attribution_section, plot_waits

BUSY = made.run(made.BUSY)


def test_the_table_has_mean_and_share_of_each_part() -> None:
    table = make_attribution_section(BUSY).table
    assert table is not None
    assert [column.title for column in table.columns] == [
        "ms, mean",
        "first token (n = 100)",
        "beyond P99 TTFT (n = 1)",
        "gaps beyond P99 (n = 31)",
    ]
    rows = {row[0]: row[1:] for row in table.body}
    assert list(rows) == [
        "sent late", "round trip", "path delay", "HTTP, tokenizing", "queue", "prefill", "decode step",
        "others' prefill", "unknown", "total",
    ]  # fmt: skip
    queue = rows["queue"]
    assert list(queue) == ["6.38", "440.00", "–"]
    assert [cell.aside for cell in queue if isinstance(cell, Number)] == ["14 %", "86 %"]


def test_bars_are_whole_waits_longest_first() -> None:
    tokens, gaps = plot_waits(BUSY, made.BUSY)
    assert (tokens.key, gaps.key) == ("slowest-first-tokens", "longest-gaps")
    for panel, waits in ((tokens, made.BUSY.ttft), (gaps, made.BUSY.gaps)):
        longest_ms = np.sort(waits.whole_ns)[::-1][: run_charts.MOST_WAITS] / 1e6
        lengths = np.zeros(len(longest_ms))
        for spans in panel.spans:
            np.add.at(lengths, spans.at.astype(int) - 1, spans.end - spans.begin)
            assert bool((spans.end > spans.begin).all())
        assert np.allclose(lengths, longest_ms)
        assert panel.x_end == longest_ms[0]
        assert panel.numbers is not None
        assert len(panel.numbers.body) == len(longest_ms)
    assert [spans.name for spans in gaps.spans] == ["decode step", "others' prefill", "unknown"]
    assert tokens.numbers is not None
    assert tokens.numbers.body[0] == (
        "request 99",
        "512.10",
        "0.10",
        "0.20",
        "1.80",
        "440.00",
        "60.00",
        "10.00",
    )
    assert gaps.numbers is not None
    assert gaps.numbers.body[0][0] == "request 0, message 7"


def test_each_part_has_a_colour_of_its_own_in_both_themes() -> None:
    shades = [spans.tone for spans in next(plot_waits(BUSY, made.BUSY)).spans]
    assert set(shades) <= set(SHADES.values())
    for theme in (LIGHT, DARK):
        assert len({theme[each] for each in SHADES.values()}) == len(PARTS)


def test_what_is_not_known_is_not_drawn() -> None:
    assert list(plot_waits(made.run(made.NOTHING_KNOWN), made.NOTHING_KNOWN)) == []
    unknown = make_attribution_section(made.run(made.NOTHING_KNOWN))
    assert "`loadgen explain` names what would show more of what is unknown" in unknown.remarks
    nothing = make_attribution_section(made.run(made.SMOOTH))
    assert (nothing.panels, nothing.table) == ((), None)
    assert nothing.remarks[0].startswith("nothing to explain: ")
    assert not make_attribution_section(made_runs.run(requests=5))


def test_the_page_has_the_section_its_pictures_and_their_words() -> None:
    page = str(html.render_page(compose_document([made_runs.reported(BUSY)])))
    assert page.count('id="run-1-attribution"') + page.count('-attribution">Where the time goes') >= 1
    assert "<title id=" in page
    assert "Slowest first tokens: The 20 longest, a bar each" in page
    assert all(f"var(--{shade})" in page for shade in ("part-queue", "part-prefill", "part-others_prefill"))
