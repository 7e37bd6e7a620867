"""The browser that pages are shown in."""

from __future__ import annotations

from study.pages.conftest import browser

__all__ = ["browser"]
