"""The loop of a series and the server that it keeps, whatever becomes of them, and varied flags."""

from __future__ import annotations

import signal
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from builders.loops import loop_over
from loadgen.base.errors import LoadgenError, MeasureError, ServerDied, UsageError
from loadgen.base.signals import Stopped
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import Seed
from loadgen.run.command.options import Options
from loadgen.run.session import Session
from loadgen.settings.validation import ServerSettings
from loadgen.study.series.point_runs import (
    GivenServer,
    MeasuredPoint,
    PointServers,
    Step,
    measure_point,
    overlay_settings,
    run_series,
)
from loadgen.study.series.series_store import strip_resume

SESSION = cast(Session, "session")
DONE, GONE = MeasuredPoint(), MeasuredPoint(reason="gone", server_gone=True)
CUT = MeasuredPoint(reason="cut short", signal=signal.SIGTERM)
Outcome = MeasuredPoint | BaseException


class Scripted:
    """A series of one step for each outcome, and its server: `log` has what the loop did with them."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.left, self.log = deque(outcomes), list[str]()

    def choose(self) -> Step[Outcome] | None:
        return Step(self.left.popleft(), Profile()) if self.left else None

    def measure(self, step: Step[Outcome], session: Session) -> MeasuredPoint:
        assert session is SESSION
        if isinstance(step.what, BaseException):
            raise step.what
        return step.what

    def keep(self, step: Step[Outcome], point: MeasuredPoint) -> None:
        self.log.append(f"keep {'no server: ' if point.unserved else ''}{point.signal or point.reason}")

    def session(self, workload: Profile) -> Session:
        if "refuse" in self.log:
            self.log.remove("refuse")
            raise MeasureError("it does not start", " details")
        return SESSION

    def replace_server(self, died: LoadgenError | None) -> None:
        self.log.append("replace server")


@loop_over(
    ("outcomes", "number", "log"),
    [
        ([DONE, DONE], 0, ["keep ", "keep "]),
        ([GONE, DONE], 0, ["keep gone", "replace server", "keep "]),
        ([CUT, DONE], signal.SIGTERM, [f"keep {signal.SIGTERM:d}"]),
        ([Stopped(signal.SIGHUP), DONE], signal.SIGHUP, [f"keep {signal.SIGHUP:d}"]),
        ([KeyboardInterrupt(), DONE], signal.SIGINT, [f"keep {signal.SIGINT:d}"]),
    ],
)
def test_every_step_is_kept_and_a_signal_ends_the_series(
    outcomes: list[Outcome], number: int, log: list[str]
) -> None:
    series = Scripted(*outcomes)
    ending: AbstractContextManager[Any] = pytest.raises(Stopped) if number else nullcontext()
    with ending as stopped:
        run_series(series, cast(PointServers, series))
    assert (series.log, len(series.left)) == (log, bool(number))
    assert stopped is None or stopped.value.number == number


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


TINY = Profile(name="tiny", input_len=8, output_len=4, num_prompts=6, max_concurrency=2)


@loop_over(
    ("serve", "expected"),
    [
        ({}, {}),
        ({"max-num-seqs": "8"}, {"arguments": ("--a", "--max-num-seqs=8")}),
        ({"enable-chunked-prefill": "true"}, {"arguments": ("--a", "--enable-chunked-prefill")}),
        ({"enable-chunked-prefill": "false"}, {"arguments": ("--a", "--no-enable-chunked-prefill")}),
        ({"context-len": "4096"}, {"context_len": 4096}),
        ({"memory_fraction": "0.5"}, {"memory_fraction": 0.5}),
        (
            {"prefix-caching": "false", "quantization": "fp8"},
            {"prefix_caching": False, "quantization": "fp8"},
        ),
    ],
)
def test_a_varied_flag_is_a_setting_of_ours_or_the_engines(
    serve: dict[str, str], expected: dict[str, object]
) -> None:
    asked = ServerSettings(arguments=("--a",))
    assert overlay_settings(asked, serve) == asked.model_copy(update=expected)


@loop_over(
    ("serve", "message"),
    [
        ({"context-len": "many"}, "--context-len 'many': input should be a valid integer"),
        ({"arguments": "--x"}, "--serve-param arguments: give single flags of the engine, as max-num-seqs=8"),
    ],
)
def test_a_varied_flag_that_is_not_valid_is_refused(serve: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        overlay_settings(ServerSettings(), serve)


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_server_is_kept_until_it_is_closed(tmp_path: Path) -> None:
    servers = PointServers(
        Options(preset="instant", quiet=True), ServerSettings(), tmp_path / "servers", print
    )
    assert servers.restartable
    with servers:
        first = servers.session(TINY)
        assert servers.session(TINY) is first
        points = [measure_point(first, TINY, Seed(3, True, repeat), tmp_path / "runs") for repeat in (0, 1)]
        servers.close()
        assert measure_point(first, TINY, Seed(3, True, 2), tmp_path / "runs").server_gone
        again = servers.session(TINY)
        assert again.access.base_url != first.access.base_url
        points.append(measure_point(again, TINY, Seed(3, True, 0), tmp_path / "runs"))
    assert [(point.reason, point.signal, point.server_gone) for point in points] == [("", 0, False)] * 3
    digests = [point.run.facts.plan_digest for point in points if point.run is not None]
    assert digests[0] == digests[2] != digests[1]
    assert len(servers.starts_s) == 2


@loop_over(
    ("words", "expected"),
    [
        ("loadgen sweep --rate 1,2 --resume runs/s --seed 3", "loadgen sweep --rate 1,2 --seed 3"),
        ("loadgen sweep --resume --rate 1,2", "loadgen sweep --rate 1,2"),
        ("loadgen sweep --rate 1,2 --resume=runs/s", "loadgen sweep --rate 1,2"),
        ("loadgen limit --slo x --resume", "loadgen limit --slo x"),
        ("loadgen campaign c.toml --resume --quiet", "loadgen campaign c.toml --quiet"),
        ("loadgen bench --rate 1", "loadgen bench --rate 1"),
        ("loadgen", "loadgen"),
    ],
)
def test_a_series_is_begun_again_and_not_resumed(words: str, expected: str) -> None:
    assert strip_resume(words.split()) == expected.split()
