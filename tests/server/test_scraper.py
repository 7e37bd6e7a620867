"""The observer beside a run, against a server that plays a script."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from itertools import pairwise

import httpx
import pytest

from builders.loops import loop_over
from fakes.scripted_server import PATIENCE_S, Answer, Asked, End, ScriptedServer, whole
from loadgen.server import exchange, scraper
from loadgen.server.exchange import ServerAddress
from loadgen.server.scraper import MetricsScraper

Script = Callable[[Asked], Answer]
SILENT = "/metrics does not answer"
NEEDED = "sglang needs --enable-metrics, llamacpp needs --metrics, trtllm needs return_perf_metrics: true"


def exposition(tokens: float, running: float = 0, *models: str) -> Answer:
    rows = {"generation_tokens_total": tokens, "num_requests_running": running, "num_requests_waiting": 0}
    text = "".join(
        f'vllm:{name}{{model_name="{model}"}} {value}\n'
        for model in models or ("m",)
        for name, value in rows.items()
    )
    return Answer([whole(text.encode(), kind="text/plain")])


def in_turn(*answers: Answer) -> Script:
    """These answers, the last one from then on."""
    return lambda asked: answers[min(asked.number, len(answers) - 1)]


def observer(server: ScriptedServer, model: str = "", **headers: str) -> MetricsScraper:
    return MetricsScraper(ServerAddress(server.base_url, headers), model)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is waited for comes soon; what may not come is waited for as long as it takes."""
    soon = {"_FIRST_S": 0.0, "_EVERY_S": 0.02, "SAMPLING_SHARE": 1.0, "_BETWEEN_S": 0.0}
    for name, value in {**soon, "_IDLE_S": PATIENCE_S, "_SCRAPES_PER_S": 1000}.items():
        monkeypatch.setattr(scraper, name, value)


def observers(patience_s: float = PATIENCE_S) -> list[threading.Thread]:
    """The threads that still observe, after a while."""
    found = [thread for thread in threading.enumerate() if thread.name == "observe"]
    for thread in found:
        thread.join(patience_s)
    return [thread for thread in found if thread.is_alive()]


@loop_over(
    # A broken answer is asked for three times.
    ("answer", "error", "requests"),
    [
        (Answer([whole(b"{}", "404 Not Found")]), f"/metrics answers 404 ({NEEDED})", 1),
        (Answer([whole(b"<html>\n", kind="text/html")]), "/metrics is HTML, not Prometheus text", 1),
        (Answer([b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nvllm:"], End.CLOSE), SILENT, 3),
        (Answer([b"\x00\x01\x02\r\n\r\n"], End.CLOSE), SILENT, 3),
        (Answer([], End.RESET), SILENT, 3),
    ],
)
def test_a_server_without_metrics_is_asked_once(
    answer: Answer, error: str, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "SOON", exchange.Repeats((0.0, 0.0), lambda why: None))
    with ScriptedServer(in_turn(answer)) as server:
        watching = observer(server)
        assert watching.scrape_before().startswith(error)
        with watching.sampling():
            assert not observers()
        window = watching.scrape_after()
    assert (len(server.asked), window.names) == (requests, "")
    assert window.error.startswith(error)


@loop_over(
    ("answer", "error"),
    [
        (Answer([], End.HANG), "/metrics does not answer within 0.05 s"),
        (Answer([whole(b"#" * (2 << 20))]), "/metrics answers more than 1 MiB"),
    ],
)
def test_a_server_that_hangs_or_never_stops_talking_is_given_up(
    answer: Answer, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scraper, "_ANSWER_S", 0.05 if answer.end is End.HANG else PATIENCE_S)
    monkeypatch.setattr(scraper, "LARGEST_BYTES", 1 << 20)
    with ScriptedServer(in_turn(answer)) as server:
        assert observer(server).scrape_before() == error


def test_the_window_is_what_moved_and_carries_the_key(often: None) -> None:
    with ScriptedServer(in_turn(exposition(100), exposition(164))) as server:
        watching = observer(server, Authorization="Bearer k")
        assert watching.scrape_before() == ""
        window = watching.scrape_after()
    assert (window.generation_tokens, window.settled, window.models) == (64, True, ("m",))
    assert (window.running_before, window.running_after) == (0, 0)
    assert len(server.asked) == 3
    assert all("Authorization: Bearer k" in asked.head for asked in server.asked)


def test_it_waits_until_nothing_runs_and_the_counters_stand_still(often: None) -> None:
    late = [exposition(110, running=1), exposition(110, running=1), exposition(120), exposition(130)]
    with ScriptedServer(in_turn(exposition(100), *late)) as server:
        watching = observer(server)
        watching.scrape_before()
        meanwhile = list[int]()
        window = watching.scrape_after(lambda: meanwhile.append(len(server.asked)))
    assert (window.generation_tokens, window.settled, len(server.asked)) == (30, True, 6)
    assert meanwhile == [2]


def test_a_server_that_others_keep_busy_is_left_unsettled(
    often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scraper, "_IDLE_S", 0.3)
    with ScriptedServer(lambda asked: exposition(asked.number, running=3)) as server:
        watching = observer(server)
        watching.scrape_before()
        window = watching.scrape_after()
    assert (window.settled, window.running_after) == (False, 3)


def test_before_can_wait_for_the_warm_up_to_end(often: None) -> None:
    with ScriptedServer(
        in_turn(exposition(5, running=1), exposition(9), exposition(9), exposition(73))
    ) as server:
        watching = observer(server)
        watching.scrape_before(idle_s=PATIENCE_S)
        window = watching.scrape_after()
    assert (window.generation_tokens, window.running_before) == (64, 0)


def test_only_the_asked_model_is_counted(often: None) -> None:
    both = [exposition(1, 0, "m", "other"), exposition(9, 0, "m", "other")]
    with ScriptedServer(in_turn(*both)) as server:
        watching = observer(server, "other")
        watching.scrape_before()
        window = watching.scrape_after()
    assert (window.generation_tokens, window.models) == (8, ("m", "other"))


def test_a_server_that_dies_in_the_run_is_told(often: None) -> None:
    with ScriptedServer(in_turn(exposition(1))) as server:
        watching = observer(server)
        watching.scrape_before()
    assert watching.scrape_after().error.startswith("after the run /metrics does not answer")


def test_gauges_are_sampled_while_it_runs(often: None) -> None:
    enough = threading.Event()

    def script(asked: Asked) -> Answer:
        if asked.number == 4:
            enough.set()
        if asked.number == 2:
            return Answer([whole(b"busy", "503 Service Unavailable")])
        number = min(asked.number, 5)
        return exposition(number, running=5 - number)

    with ScriptedServer(script) as server:
        watching = observer(server)
        watching.scrape_before()
        with watching.sampling():
            assert enough.wait(PATIENCE_S)
        assert not observers()
        window = watching.scrape_after()
    assert [sample.running for sample in window.samples][:2] == [4, 2]
    assert window.peak("running") == 4
    times = [sample.at_s for sample in window.samples]
    assert times == sorted(times)
    assert 0 <= times[0] < times[-1]  # of a fast machine the first is there within half a millisecond


def test_looks_take_their_share_of_a_run_at_most(often: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scraper, "SAMPLING_SHARE", 0.1)
    enough = threading.Event()

    def script(asked: Asked) -> Answer:
        if asked.number == 4:
            enough.set()
        return Answer([0.01, *exposition(1).pieces])

    with ScriptedServer(script) as server:
        watching = observer(server)
        watching.scrape_before()
        with watching.sampling():
            assert enough.wait(PATIENCE_S)
    times = [at_s for at_s, _ in watching.samples]
    assert min(later - earlier for earlier, later in pairwise(times)) >= 0.01 / 0.1


@pytest.mark.whole
def test_leaving_does_not_wait_for_a_server_that_hangs(often: None) -> None:
    hung = threading.Event()

    def script(asked: Asked) -> Answer:
        if asked.number == 0:
            return exposition(1)
        hung.set()
        return Answer([], End.HANG)

    with ScriptedServer(script) as server:
        watching = observer(server)
        watching.scrape_before()
        with watching.sampling():
            assert hung.wait(PATIENCE_S)
        assert not observers(0.0)


def test_an_error_in_the_run_ends_the_sampling_too(often: None) -> None:
    with ScriptedServer(in_turn(exposition(1))) as server:
        watching = observer(server)
        watching.scrape_before()
        with pytest.raises(KeyboardInterrupt), watching.sampling():
            raise KeyboardInterrupt
        assert not observers()


def test_answers_do_not_pile_up_while_the_collector_is_off(often: None) -> None:
    gc.collect()
    gc.disable()
    try:
        with ScriptedServer(in_turn(exposition(1))) as server:
            watching = observer(server)
            for _ in range(3):
                watching.scrape_before()
        left = [found for found in gc.get_objects() if isinstance(found, httpx.Response)]
        assert not left
    finally:
        gc.enable()
