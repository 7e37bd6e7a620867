"""The HTML report in a real browser: it asks nobody for anything, and every figure is the run's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builders import made_runs
from builders.browsing import Watched, wait_until
from loadgen.study.pages.document import compose_document, render_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser


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
def test_every_panel_is_drawn_in_its_own_size_without_an_error_or_a_request(
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
