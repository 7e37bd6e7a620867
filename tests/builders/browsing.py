"""A real browser for what is seen: what a page says and asks for is watched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builders import made_runs

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

REQUIRED = os.environ.get("LOADGEN_REQUIRE_BROWSER") == "1"
# Nothing of Chromium's own goes out either.
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


def missing(why: str) -> None:
    """Skip, or fail where a browser is promised."""
    if REQUIRED:
        pytest.fail(why)
    pytest.skip(why)


EVIL = "<script>alert(1)</script>\"'&{{ 7*7 }}"
RUN = made_runs.run(failed=1)
DRAWN = "Array.from(document.querySelectorAll('.plot')).every((one) => one.querySelector('canvas'))"


def wait_until(page: Page, holds: str) -> None:
    """Wait until an expression holds; the page's own policy forbids Playwright's way, which is eval."""
    while not page.evaluate(holds):
        page.wait_for_timeout(20)


class Watched:
    """A page, and what it said and asked for."""

    def __init__(self, browser: Browser, path: Path, **options: Any) -> None:
        self.said: list[str] = []
        self.asked: list[str] = []
        self.context = browser.new_context(**options)
        self.page: Page = self.context.new_page()
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.said.append(f"dialog: {dialog.message}"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())
        self.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        wait_until(self.page, DRAWN)

    def __enter__(self) -> Page:
        return self.page

    def __exit__(self, *_: object) -> None:
        self.context.close()
