"""Leftovers: processes that should have ended with the command that started them."""

from __future__ import annotations

import os
import time

import psutil

PATIENCE_S = 120.0


def left(*marks: str) -> list[str]:
    """The living processes whose command line or name holds one of the marks, whoever they belong to.

    Those that run in this directory are engines that tests share: a test starts a command elsewhere.
    """
    found, here = [], os.getcwd()
    for process in psutil.process_iter(["cmdline", "cwd", "name", "status"]):
        words = " ".join([process.info["name"] or "", *(process.info["cmdline"] or ())])
        living = process.info["status"] != psutil.STATUS_ZOMBIE
        if living and process.info["cwd"] != here and any(mark in words for mark in marks):
            found.append(words)
    return found


def until_nothing_is_left(*marks: str) -> None:
    """Wait until they have ended; fails where they do not."""
    deadline = time.monotonic() + PATIENCE_S
    while found := left(*marks):
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
