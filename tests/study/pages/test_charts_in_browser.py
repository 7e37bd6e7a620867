"""Charts in a real browser: the values under the pointer are the run's, and zoom keeps them so."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from builders import made_runs
from builders.browsing import RUN, Watched
from loadgen.server.sample_file import KeptSamples, SampledSeries
from loadgen.study.pages import run_charts
from loadgen.study.pages.document import compose_document
from loadgen.study.pages.run_charts import find_window

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page


def figure(page: Page, key: str) -> Locator:
    """The picture of the single run, so that the pointer can reach it."""
    found = page.locator(f"#run-1-{key}")
    found.locator("svg").scroll_into_view_if_needed()
    return found


def pointed(page: Page, key: str, share: float, height: float = 0.4) -> list[str]:
    """What is shown with the pointer at a share of a picture's width."""
    found = figure(page, key)
    box = found.locator("svg").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + share * box["width"], box["y"] + height * box["height"])
    return list(found.locator(".tip > *").all_inner_texts())


@pytest.mark.whole
def test_the_value_and_the_time_under_the_pointer_are_the_run_s(
    browser: Browser, pages: dict[str, Any]
) -> None:
    (curve,) = next(panel for panel in run_charts.plot_run(RUN) if panel.key == "tokens-over-time").curves
    with Watched(browser, pages["single"]) as page:
        seen = [pointed(page, "tokens-over-time", share) for share in (0.3, 0.5, 0.8)]
    for time, value in seen:
        begin_s, end_s = (float(each) for each in re.findall(r"[\d.]+", time))
        place = int(np.abs(curve.x - begin_s).argmin())
        assert (begin_s, end_s) == pytest.approx((curve.x[place], curve.x[place + 1]), rel=1e-4)
        assert value == f"{float(f'{curve.y[place]:.5g}'):,.5g} tokens/s"
    assert len({time for time, _ in seen}) == 3


@pytest.mark.whole
@pytest.mark.parametrize(("key", "says"), [
    ("ttft-distribution", r"≤ [\d.]+ ms(, P\d+ [\d.]+)?\n[\d.]+ %"),
    ("concurrency-over-time", r"[\d.]+ to [\d.]+ s\n\d+ requests?"),
    ("ttft-over-time", r"[\d.]+ s, when sent\n[\d.]+ ms"),
    ("timeline", r"request \d+\nuntil its first token: [\d.]+ to [\d.]+ s \([\d.]+ s\)\nuntil its last.*"),
    ("server-requests", r"[\d.]+ s\nrunning: 3 requests\nwaiting: 1 request"),
    ("server-kv-cache", r"[\d.]+ s\n[\d.]+ %"),
])  # fmt: skip
def test_every_kind_of_picture_has_values_under_the_pointer(
    browser: Browser, pages: dict[str, Any], key: str, says: str
) -> None:
    watched = Watched(browser, pages["single"])
    with watched as page:
        assert re.fullmatch(says, "\n".join(pointed(page, key, 0.5)))
        page.mouse.move(0, 0)
        assert page.locator(".tip:visible").count() == 0
    assert watched.said == []


@pytest.mark.whole
def test_two_distributions_are_compared_at_one_latency(browser: Browser, pages: dict[str, Any]) -> None:
    drawn = next(panel for panel in pages["compared"].distributions if panel.key == "e2el-distribution")
    with Watched(browser, pages["campaign"]) as page:
        found = page.locator("#load-1-e2el-distribution")
        found.locator("svg").scroll_into_view_if_needed()
        box = found.locator("svg").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.4 * box["height"])
        head, *rows = found.locator(".tip > *").all_inner_texts()
    at_ms = float(re.findall(r"[\d.,]+", head)[0].replace(",", "")) * (1 + 1e-4)  # written in five digits
    for row, curve in zip(rows, drawn.curves, strict=True):
        below = curve.y[curve.x <= at_ms]
        share = below[-1] if len(below) else 0.0
        assert float(row.rpartition(": ")[2].removesuffix(" %")) == pytest.approx(share, rel=1e-4)


@pytest.mark.whole
def test_points_on_a_line_move_with_it_and_stay_inside(browser: Browser, tmp_path: Path) -> None:
    from loadgen.study.pages import html  # where there is a browser, there is jinja2

    runs = [
        made_runs.reported(made_runs.run(concurrency=at, speed=8 / (8 + at), seed=at)) for at in (1, 2, 4, 8)
    ]
    path = tmp_path / "sweep.html"
    path.write_text(html.render_page(compose_document(runs)), "utf-8")
    inside = (
        "one => { const box = one.getBoundingClientRect(); return Array.from(one.querySelectorAll("
        "'[data-part=m]:not([visibility=hidden])'), (each) => { const at = each.getBoundingClientRect();"
        "return at.left > box.left && at.right < box.right; }); }"
    )
    with Watched(browser, path) as page:
        found = page.locator("#sweeps figure").first
        picture = found.locator("svg")
        assert picture.evaluate(inside) == [True] * 8  # P50 and P99 of each run
        picture.focus()
        page.keyboard.press("ArrowRight")
        shown = found.locator(".tip > *").all_inner_texts()
        assert re.fullmatch(r"output tokens/s, all requests: [\d.,]+", shown[0])
        assert [text.partition(":")[0].rpartition(" ")[2] for text in shown[1:]] == ["P50", "P99"]
        page.keyboard.press("+")
        assert len(picture.evaluate(inside)) < 8
        assert all(picture.evaluate(inside))


@pytest.mark.whole
def test_a_stretch_is_drawn_up_to_the_width_and_back(browser: Browser, pages: dict[str, Any]) -> None:
    ticks = "one => Array.from(one.querySelectorAll('[data-part=x]'), (each) => Number(each.textContent))"
    with Watched(browser, pages["single"]) as page:
        found = figure(page, "tokens-over-time")
        before = found.evaluate(ticks)
        pointed(page, "tokens-over-time", 0.4)
        page.mouse.down()
        pointed(page, "tokens-over-time", 0.6)
        page.mouse.up()
        zoomed = found.evaluate(ticks)
        assert min(before) < min(zoomed) <= max(zoomed) < max(before)
        assert len(zoomed) > 1
        found.get_by_role("button", name="Show all of it").click()
        assert found.evaluate(ticks) == pytest.approx(before)


@pytest.mark.whole
def test_samples_are_points_again_where_zoom_pulls_them_apart(browser: Browser, tmp_path: Path) -> None:
    begin_ns, window_s = find_window(RUN.records) or (0, 0.0)
    at_ns = (begin_ns + np.linspace(0, window_s, 200) * 1e9).astype(np.int64)
    series = SampledSeries("power_w", "GPU 0", at_ns, np.arange(200, dtype=np.float64))
    run = replace(RUN, samples=KeptSamples((series,)))
    path = tmp_path / "sampled.html"
    from loadgen.study.pages import html  # where there is a browser, there is jinja2

    path.write_text(html.render_page(compose_document([made_runs.reported(run)])), "utf-8")
    joined = "one => one.querySelector('[data-part=c]').getAttribute('d').toUpperCase().includes('L')"
    with Watched(browser, path) as page:
        found = figure(page, "power")
        assert found.evaluate(joined)
        found.locator("svg").focus()
        page.keyboard.press("+")
        assert not found.evaluate(joined)
        page.keyboard.press("0")
        assert found.evaluate(joined)


@pytest.mark.whole
def test_values_and_zoom_need_no_pointer(browser: Browser, pages: dict[str, Any]) -> None:
    with Watched(browser, pages["single"]) as page:
        found = figure(page, "e2el-distribution")
        found.locator("svg").focus()
        said = []
        for key in ("ArrowRight", "ArrowRight", "End", "Home"):
            page.keyboard.press(key)
            said.append(found.locator(".tip").inner_text())
        assert said[0] == said[3] != said[1]
        assert said[2].endswith("100 %")
        assert found.locator(".tip").get_attribute("role") == "status"
        reset = found.get_by_role("button", name="Show all of it")
        page.keyboard.press("+")
        assert reset.is_visible()
        page.keyboard.press("Escape")
        assert not reset.is_visible()


@pytest.mark.whole
def test_a_picture_can_have_the_whole_width(browser: Browser, pages: dict[str, Any]) -> None:
    with Watched(browser, pages["single"], viewport={"width": 1280, "height": 900}) as page:
        found = figure(page, "tokens-over-time")
        pointed(page, "tokens-over-time", 0.5)
        wide = "one => one.getBoundingClientRect().width / one.parentElement.getBoundingClientRect().width"
        assert found.evaluate(wide) < 0.5
        found.get_by_role("button", name="Full width").click()
        assert found.evaluate(wide) == pytest.approx(1.0, abs=0.01)
        assert (
            page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
        )


@pytest.mark.whole
def test_without_a_script_every_picture_and_explanation_is_there(
    browser: Browser, pages: dict[str, Any]
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["single"].as_uri())
    figures = page.locator("figure")
    assert figures.count() == page.locator("figure svg [data-part=g]").count() == 11
    explained = page.locator("dt", has_text="TTFT").locator("p")
    assert not explained.is_visible()
    page.locator("summary[aria-label='What is TTFT?']").click()
    assert explained.is_visible()
    context.close()
