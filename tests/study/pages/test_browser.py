"""Pages in a real browser: they ask for nothing, and the values under the pointer are the run's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from builders import made_runs
from builders.browsing import RUN, Watched, wait_until
from loadgen.study.pages import run_charts
from loadgen.study.pages.document import compose_document, render_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser
if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

HOSTILE = [
    "</script><script>alert(1)</script>", "\" onmouseover=\"alert(1)\" x='", "<svg/onload=alert(1)>",
    "</style><style>*{display:none}", "{{7*7}}${alert(1)}", "]]><!--", "\u202egnissalg \u0627\u0644",
    "a\0b\x1b[31m", "a\u2028b\nc\rd", "javascript:alert(1)", "x" * 20_000,
    "mot " * 5_000, "Z" + "\u0301" * 2_000,
]  # fmt: skip


@pytest.mark.whole
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_runs_nothing_and_fits_a_telephone(
    browser: Browser, tmp_path: Path, name: str
) -> None:
    run = made_runs.reported(made_runs.run(model=name, label=name, failed=1))
    path = tmp_path / "page.html"
    path.write_text(render_page(compose_document([run], (), (), [name])), "utf-8")
    watched = Watched(browser, path, **_TELEPHONE)
    with watched as page:
        assert page.locator("script").count() == 1
        assert page.evaluate("document.querySelectorAll('[onload], [onmouseover], svg[onload]').length") == 0
        assert page.evaluate("getComputedStyle(document.body).display") == "block"
        root = "document.documentElement"
        assert page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0
    assert watched.said == []
    assert watched.asked == [path.as_uri()]


@pytest.mark.whole
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_dark_and_light_are_the_reader_s_choice(browser: Browser, pages: dict[str, Any], scheme: str) -> None:
    ground, dark, light = (
        "getComputedStyle(document.body).backgroundColor",
        "rgb(21, 25, 30)",
        "rgb(255, 255, 255)",
    )
    with Watched(browser, pages["single"], color_scheme=scheme) as page:
        first, other = (dark, light) if scheme == "dark" else (light, dark)
        assert page.evaluate(ground) == first
        page.locator("button.theme").click()
        assert page.evaluate(ground) == other
        page.emulate_media(media="print")
        assert page.evaluate(ground) == light


@pytest.mark.whole
def test_a_link_into_a_closed_run_opens_it(browser: Browser, pages: dict[str, Any]) -> None:
    with Watched(browser, pages["campaign"]) as page:
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = false; })")
        page.evaluate("location.hash = '#run-3-timeline'")
        wait_until(page, "document.getElementById('run-3').open")
        assert page.locator("#run-3-timeline canvas").is_visible()


_TELEPHONE = {"viewport": {"width": 390, "height": 844}}


@pytest.mark.whole
@pytest.mark.parametrize("name", ["single", "campaign"])
def test_on_a_telephone_no_figure_is_cut_at_the_edge(
    browser: Browser, pages: dict[str, Any], name: str
) -> None:
    """Digits that are cut read as another number: 944.06 as 9."""
    with Watched(browser, pages[name], **_TELEPHONE) as page:
        cut = page.evaluate(
            "Array.from(document.querySelectorAll('.scroll')).flatMap((scroll) => {"
            " const right = scroll.getBoundingClientRect().right;"
            " return Array.from(scroll.querySelectorAll('th, td')).filter((cell) => {"
            "  const range = document.createRange(); range.selectNodeContents(cell);"
            "  return range.getBoundingClientRect().right > right + 1; }).map((cell) => cell.textContent); })"
        )
    assert cut == []


@pytest.mark.whole
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1280])
@pytest.mark.parametrize("name", ["single", "campaign"])
def test_every_panel_is_drawn_in_its_own_size_and_nothing_is_asked(
    browser: Browser, pages: dict[str, Any], name: str, width: int, scheme: str
) -> None:
    """A canvas that is scaled down has letters that nobody can read."""
    way: dict[str, Any] = {"viewport": {"width": width, "height": 844}, "color_scheme": scheme}
    watched = Watched(browser, pages[name], **way)
    with watched as page:
        panels = page.locator(".plot").count()
        canvases = page.evaluate(
            "Array.from(document.querySelectorAll('.plot canvas'), (one) => [one.width / devicePixelRatio / "
            "one.getBoundingClientRect().width, one.getContext('2d')"
            ".getImageData(0, 0, one.width, one.height).data.some((value) => value)])"
        )
        page.emulate_media(media="print")
        page.emulate_media(media="screen")
        root = "document.documentElement"
        assert page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0
    assert panels > 10
    assert canvases == [[pytest.approx(1.0, abs=0.01), True]] * panels
    assert watched.said == []
    assert watched.asked == [pages[name].as_uri()]


PIXELS = "one => one.querySelector('canvas').toDataURL()"


def read_values(found: Locator) -> list[str]:
    """What stands below a picture: each name with its value."""
    rows = found.locator(".u-series:visible")
    names, values = (rows.locator(part).all_inner_texts() for part in (".u-label", ".u-value"))
    return [f"{name}: {value}" for name, value in zip(names, values, strict=True)]


def pointed(page: Page, picture: str, share: float, height: float = 0.4) -> list[str]:
    """What is shown with the pointer at a share of a picture's width."""
    found = page.locator(picture)
    found.locator(".u-over").scroll_into_view_if_needed()
    box = found.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + share * box["width"], box["y"] + height * box["height"])
    return read_values(found)


@pytest.mark.whole
def test_the_value_and_the_time_under_the_pointer_are_the_run_s(
    browser: Browser, pages: dict[str, Any]
) -> None:
    (curve,) = next(panel for panel in run_charts.plot_run(RUN) if panel.key == "tokens-over-time").curves
    with Watched(browser, pages["single"]) as page:
        seen = [pointed(page, "#run-1-tokens-over-time", share) for share in (0.3, 0.5, 0.8)]
        other = read_values(page.locator("#run-1-concurrency-over-time"))
    assert re.fullmatch(r"requests: \d+", other[1])  # of the same moment
    for time, value in seen:
        begin_s, end_s = (float(each) for each in re.findall(r"[\d.]+", time))
        place = int(np.abs(curve.x - begin_s).argmin())
        assert (begin_s, end_s) == pytest.approx((curve.x[place], curve.x[place + 1]), rel=1e-4)
        assert value == f"tokens/s: {float(f'{curve.y[place]:.5g}'):,.5g}"
    assert len({time for time, _ in seen}) == 3


@pytest.mark.whole
@pytest.mark.parametrize(("key", "says"), [
    ("ttft-distribution", r"ms: ≤ [\d.]+\ncumulative %: [\d.]+"),
    ("concurrency-over-time", r"s: [\d.]+ to [\d.]+\nrequests: \d+"),
    ("ttft-over-time", r"s, when sent: [\d.]+\nTTFT: [\d.]+"),
    ("timeline", r"request: \d+(\nuntil.*: [\d.]+ to [\d.]+ \([\d.]+\)|\n.*: –)+"),
    ("server-requests", r"s: [\d.]+\nrunning: 3\nwaiting: 1"),
    ("server-kv-cache", r"s: [\d.]+\nKV cache: [\d.]+"),
])  # fmt: skip
def test_every_kind_of_picture_has_values_under_the_pointer(
    browser: Browser, pages: dict[str, Any], key: str, says: str
) -> None:
    watched = Watched(browser, pages["single"])
    with watched as page:
        assert re.fullmatch(says, "\n".join(pointed(page, f"#run-1-{key}", 0.5)))
        page.mouse.move(0, 0)
        assert all(value.endswith(": –") for value in read_values(page.locator(f"#run-1-{key}")))
    assert watched.said == []


@pytest.mark.whole
def test_two_distributions_are_compared_at_one_latency(browser: Browser, pages: dict[str, Any]) -> None:
    drawn = next(panel for panel in pages["compared"].panels if panel.key == "e2el-distribution")
    with Watched(browser, pages["campaign"]) as page:
        head, *rows = pointed(page, "#load-1-e2el-distribution", 0.5)
    at_ms = float(re.findall(r"[\d.,]+", head)[0].replace(",", "")) * (1 + 1e-4)  # written in five digits
    for row, curve in zip(rows, drawn.curves, strict=True):
        below = curve.y[curve.x <= at_ms]
        share = below[-1] if len(below) else 0.0
        assert float(row.rpartition(": ")[2]) == pytest.approx(share, rel=1e-4)


@pytest.mark.whole
def test_a_stretch_is_drawn_up_to_the_width_and_back(browser: Browser, pages: dict[str, Any]) -> None:
    wide = (
        "one => one.querySelector('canvas').getBoundingClientRect().width / "
        "one.parentElement.getBoundingClientRect().width"
    )
    with Watched(browser, pages["single"], viewport={"width": 1280, "height": 900}) as page:
        found = page.locator("#run-1-tokens-over-time")
        reset = found.get_by_role("button", name="Show all of it", include_hidden=True)
        before = found.evaluate(PIXELS)
        assert not reset.is_visible()
        pointed(page, "#run-1-tokens-over-time", 0.4)
        page.mouse.down()
        pointed(page, "#run-1-tokens-over-time", 0.6)
        page.mouse.up()
        assert found.evaluate(PIXELS) != before
        reset.click()
        assert found.evaluate(PIXELS) == before
        assert found.evaluate(wide) < 0.5
        found.get_by_role("button", name="Full width").click()
        wait_until(page, f"({wide})(document.getElementById('run-1-tokens-over-time')) > 0.99")
        root = "document.documentElement"
        assert page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0


@pytest.mark.whole
def test_values_and_zoom_need_no_pointer(browser: Browser, pages: dict[str, Any]) -> None:
    with Watched(browser, pages["single"]) as page:
        found = page.locator("#run-1-e2el-distribution")
        found.locator(".plot").focus()
        said = []
        for key in ("ArrowRight", "ArrowRight", "End", "Home"):
            page.keyboard.press(key)
            said.append(read_values(found))
        assert said[0] == said[3] != said[1]
        assert said[2][1].endswith(": 100")
        assert found.locator("[aria-live=polite]").count() == 1
        reset = found.get_by_role("button", name="Show all of it", include_hidden=True)
        page.keyboard.press("+")
        assert reset.is_visible()
        page.keyboard.press("Escape")
        assert not reset.is_visible()


@pytest.mark.whole
def test_points_of_several_loads_have_both_percentiles(browser: Browser, tmp_path: Path) -> None:

    runs = [
        made_runs.reported(made_runs.run(concurrency=at, speed=8 / (8 + at), seed=at)) for at in (1, 2, 4, 8)
    ]
    path = tmp_path / "sweep.html"
    path.write_text(render_page(compose_document(runs)), "utf-8")
    with Watched(browser, path) as page:
        found = page.locator("#loads figure, #sweeps figure").first
        found.locator(".plot").focus()
        page.keyboard.press("ArrowRight")
        shown = read_values(found)
    assert re.fullmatch(r"output tokens/s, all requests: [\d.,]+", shown[0])
    assert [text.partition(":")[0].rpartition(" ")[2] for text in shown[1:]] == ["P50", "P99"]


@pytest.mark.whole
def test_without_a_script_the_numbers_of_every_picture_are_there(
    browser: Browser, pages: dict[str, Any]
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["single"].as_uri())
    figures = page.locator("figure")
    assert figures.count() == page.locator("figure .numbers[open] table").count() == 11
    explained = page.locator("dt", has_text="TTFT").locator("p")
    assert not explained.is_visible()
    page.locator("summary[aria-label='What is TTFT?']").click()
    assert explained.is_visible()
    context.close()
