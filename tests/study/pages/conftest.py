"""The browser and the pages that it is shown."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from builders import made_runs
from builders.browsing import ARGUMENTS, EVIL, RUN, missing
from loadgen.base.passages import find_passage
from loadgen.report.run_writer import encode_run
from loadgen.study.compare.model import Decision
from loadgen.study.pages.document import compose_document, render_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

with contextlib.suppress(ImportError):
    import matplotlib.font_manager  # noqa: F401 # asks the system for fonts, which a unit test may not


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        missing("no chromium on this machine")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A page of one run and its result, and one of a campaign whose model is a script."""
    directory = tmp_path_factory.mktemp("pages")
    run = RUN
    single = directory / "single.html"
    single.write_text(render_page(compose_document([made_runs.reported(run)])), "utf-8")
    runs = [
        made_runs.reported(made_runs.run(concurrency=2 + at % 2, seed=at, model=f"m{at % 2}{EVIL}"))
        for at in range(4)
    ]
    found = made_runs.comparison(
        made_runs.line(f"m0{EVIL}", tuple(runs[0::2]), roofline=0.41),
        made_runs.line(f"m1{EVIL}", tuple(runs[1::2]), Decision.FASTER, marks=(EVIL,), roofline=0.6),
    )
    campaign = directory / "campaign.html"
    whole = compose_document(runs, [found], (), [EVIL])
    campaign.write_text(render_page(whole), "utf-8")
    result = json.loads(json.dumps(encode_run(run)))
    return {
        "single": single, "campaign": campaign, "result": result, "comparison": found,
        "compared": find_passage(whole.sections, "load-1"),
    }  # fmt: skip
