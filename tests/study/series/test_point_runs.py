"""The loop of a series: what is chosen is measured and kept, whatever becomes of server and signals."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Mapping
from typing import cast

import pytest

from builders.loops import loop_over
from loadgen.base.errors import LoadgenError, MeasureError, ServerDied
from loadgen.base.signals import Stopped
from loadgen.plan.profile import Profile
from loadgen.run.session import Session
from loadgen.study.series.point_runs import GivenServer, MeasuredPoint, PointServers, Step, run_series

SESSION = cast(Session, "session")
DONE, GONE = MeasuredPoint(), MeasuredPoint(reason="gone", server_gone=True)
CUT = MeasuredPoint(reason="cut short", signal=signal.SIGTERM)


class Scripted:
    """A series of one step for each outcome, and its server: `log` has what the loop did with them."""

    def __init__(self, *outcomes: MeasuredPoint | BaseException) -> None:
        self.left, self.log = deque(outcomes), list[str]()

    def choose(self) -> Step[MeasuredPoint | BaseException] | None:
        return Step(self.left.popleft(), Profile(), {"flag": "1"}) if self.left else None

    def measure(self, step: Step[MeasuredPoint | BaseException], session: Session) -> MeasuredPoint:
        assert session is SESSION
        if isinstance(step.what, BaseException):
            raise step.what
        return step.what

    def keep(self, step: Step[MeasuredPoint | BaseException], point: MeasuredPoint) -> None:
        self.log.append(f"keep {'no server: ' if point.unserved else ''}{point.signal or point.reason}")

    def session(self, workload: Profile, serve: Mapping[str, str] | None = None) -> Session:
        assert serve == {"flag": "1"}
        if "refuse" in self.log:
            self.log.remove("refuse")
            raise MeasureError("it does not start", " details")
        return SESSION

    def replace_server(self, died: LoadgenError | None) -> None:
        self.log.append("replace server")


@loop_over(
    ("outcomes", "log"),
    [
        ([], []),
        ([DONE, DONE], ["keep ", "keep "]),
        ([GONE, DONE], ["keep gone", "replace server", "keep "]),
    ],
)
def test_every_step_is_kept_and_a_server_that_is_gone_is_replaced(
    outcomes: list[MeasuredPoint], log: list[str]
) -> None:
    series = Scripted(*outcomes)
    run_series(series, cast(PointServers, series))
    assert series.log == log


@loop_over(
    ("stop", "number"),
    [(CUT, signal.SIGTERM), (Stopped(signal.SIGHUP), signal.SIGHUP), (KeyboardInterrupt(), signal.SIGINT)],
)
def test_a_signal_ends_the_series_once_its_step_is_kept(
    stop: MeasuredPoint | KeyboardInterrupt, number: int
) -> None:
    series = Scripted(stop, DONE)
    with pytest.raises(Stopped) as stopped:
        run_series(series, cast(PointServers, series))
    assert (stopped.value.number, series.log, len(series.left)) == (number, [f"keep {number}"], 1)


def test_a_step_whose_server_does_not_start_is_kept_with_the_reason() -> None:
    series = Scripted(DONE, DONE)
    series.log.append("refuse")
    run_series(series, cast(PointServers, series))
    assert series.log == ["keep no server: it does not start", "keep "]


def test_a_server_that_another_owns_ends_the_series_by_its_death_alone() -> None:
    died = ServerDied("it ended")
    series = Scripted(GONE, MeasuredPoint(reason="died", server_gone=True, died=died), DONE)
    with pytest.raises(ServerDied, match="it ended"):
        run_series(series, GivenServer(SESSION))
    assert series.log == ["keep gone", "keep died"]
