"""The page's section on quality: a table, and speed against KL with both intervals."""

from __future__ import annotations

import csv
import io

from builders.made_qualities import quality, reference, rows
from loadgen.study.compare.comparison import compare_runs
from loadgen.study.compare.model import ComparedLoad, ComparisonOptions
from loadgen.study.pages import markdown, outputs
from loadgen.study.pages.comparison_section import make_quality_section
from loadgen.study.pages.document import compose_document
from loadgen.study.pages.drawing import draw_panel
from loadgen.study.pages.page_parts import CurveStyle
from loadgen.study.pages.picture_files import render_inline_svg

SLOW, FAST = [100.0, 101.0, 99.0], [200.0, 202.0, 199.0]
RUNS = [
    *rows("bf16", SLOW, reference()), *rows("fp8", FAST, quality(0.003, 0.0004)),
    *rows("int2", FAST[:1], quality(0.31, 0.02)), *rows("none", FAST, None),
]  # fmt: skip


def found() -> list[ComparedLoad]:
    return compare_runs(RUNS, ComparisonOptions(baseline="bf16"))


def test_each_row_is_a_point_with_both_intervals() -> None:
    section = make_quality_section(found())
    assert section.table is not None
    assert [row[0] for row in section.table.body] == ["bf16", "fp8", "int2"]
    (panel,) = section.panels
    points = [curve for curve in panel.curves if curve.form is CurveStyle.MARKS]
    assert [(curve.name, float(curve.x[0]), curve.hollow) for curve in points] == [
        ("bf16", 0.0, (False,)),
        ("fp8", 0.003, (False,)),
        ("int2", 0.31, (True,)),
    ]
    lines = [curve for curve in panel.curves if curve.of == 1]
    assert lines[0].x.tolist() == [0.003 - 0.0004, 0.003 + 0.0004]
    assert lines[0].y.tolist() == [points[1].y[0]] * 2
    assert lines[1].x.tolist() == [0.003] * 2
    assert lines[1].y[0] < points[1].y[0] < lines[1].y[1]
    single = [curve for curve in panel.curves if curve.of == 2][1]
    assert single.y.tolist() == [200.0, 200.0]  # one run has no interval
    drawn = render_inline_svg(panel, "q")
    assert {"bf16", "fp8", "int2"} <= {text for text in ("bf16", "fp8", "int2") if text in drawn}
    assert draw_panel(panel).axes is not None


def test_the_section_stands_in_the_document_and_its_markdown() -> None:
    document = compose_document(RUNS, found())
    assert document.section("quality").title == "Quality, against the reference"
    assert "## Quality, against the reference" in markdown.render_markdown(document)


def test_a_picture_needs_two_distances() -> None:
    one = compare_runs([*rows("a", SLOW, None), *rows("b", FAST, quality(0.1, 0.01))], ComparisonOptions())
    assert make_quality_section(one).panels == ()
    assert not make_quality_section(compare_runs(rows("a", SLOW, None), ComparisonOptions()))


def test_the_csv_of_runs_has_the_figures_of_quality() -> None:
    lines = [*csv.DictReader(io.StringIO(outputs.render_csv(RUNS)))]
    assert [row["kl_high"] for row in lines[::3]][:2] == ["", "0.0034000000000000002"]
    assert "kl" not in outputs.render_csv(rows("a", SLOW, None)).splitlines()[0].split(",")
