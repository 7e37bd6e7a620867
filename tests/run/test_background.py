"""A call in the background: Ctrl-C ends it whenever it comes, and so does what the call itself ends with."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

import pytest

from builders.loops import loop_over
from fakes.supervised import until
from loadgen.base.signals import Interrupts
from loadgen.run.command import api
from loadgen.run.command.api import BackgroundRun

STARTING = threading.Event.wait.__code__  # until the thread runs


def press_at(step: int) -> list[str]:
    """Wait for a call with Ctrl-C at one of its steps: how the call ended, and how the waiting."""
    endings: list[str] = []
    steps = 0

    def measure(interrupts: Interrupts) -> str:
        until(lambda: interrupts.pending, "it is stopped")
        endings.append("stopped")
        return "a part"

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        if frame.f_code.co_filename != api.__file__ and frame.f_code is not STARTING:
            return None
        steps += 1
        if steps == step:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    call = BackgroundRun(measure)
    before, traced = set(threading.enumerate()), sys.gettrace()
    sys.settrace(trace)
    try:
        call.wait()
    except KeyboardInterrupt:
        endings.append(f"interrupted, with {call.partial}")
    finally:
        sys.settrace(traced)
    until(lambda: set(threading.enumerate()) <= before, "the thread has ended")
    return endings


@pytest.mark.whole
def test_ctrl_c_at_any_step_of_its_beginning_ends_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_WAKE_EVERY_S", 0.001)
    endings = [press_at(step) for step in range(1, 31)]
    first = endings.index(["stopped", "interrupted, with a part"])
    assert 3 < first < 20
    assert endings[:first] == [["interrupted, with None"]] * first
    assert endings[first:] == [["stopped", "interrupted, with a part"]] * (30 - first)


@loop_over("error", [ValueError("a"), TimeoutError("b"), KeyboardInterrupt("c")])
def test_what_a_call_raises_is_raised(error: BaseException) -> None:
    def fail(_: Interrupts) -> None:
        raise error

    call = BackgroundRun(fail)
    with pytest.raises(type(error), match=str(error)):
        call.wait()
    assert call.partial is None
