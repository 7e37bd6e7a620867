"""Servers behind a router: how they are named, found before the run, and scraped in it, each at its URL."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import pytest

from builders.loops import loop_over, read_tables
from builders.provocations import exposed
from builders.required import require
from fakes.scripted_server import PATIENCE_S, Answer, Asked, ScriptedServer, closed_port, whole
from loadgen.base.errors import MeasureError, UsageError
from loadgen.features.routed.role_scrapers import RoleScrapers, find_scrapers, parse_metrics_urls
from loadgen.run.command import keywords
from loadgen.run.command.options import bench_parser, parse
from loadgen.server import scraper
from loadgen.server.exchange import ServerAddress
from loadgen.server.scraper import MetricsScraper
from loadgen.study.series.campaign.campaign_file import make_arguments


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is waited for comes soon."""
    soon = {"_FIRST_S": 0.0, "_EVERY_S": 0.02, "SAMPLING_SHARE": 1.0, "_BETWEEN_S": 0.0}
    for name, value in {**soon, "_SCRAPES_PER_S": 1000}.items():
        monkeypatch.setattr(scraper, name, value)


def serving(stack: ExitStack, bodies: Mapping[str, bytes]) -> ScriptedServer:
    """A server with an answer at each of these paths, and a 404 elsewhere."""

    def script(asked: Asked) -> Answer:
        body = bodies.get(asked.head.split(" ")[1])
        return Answer([whole(b"{}", "404 Not Found") if body is None else whole(body)])

    return stack.enter_context(ScriptedServer(script))


def joined(*urls: str) -> RoleScrapers:
    words = [word for url in urls for word in ("--metrics-url", url)]
    options = parse(["--base-url", "http://127.0.0.1:1", *words])
    access = ServerAddress("http://127.0.0.1:1", {"Authorization": "Bearer k"})
    return find_scrapers(options, access)(MetricsScraper(access, "m"))


def test_each_is_scraped_where_it_is_and_none_gets_the_key(stack: ExitStack) -> None:
    plain = serving(stack, {"/metrics": exposed(3, 15)})
    at_path = serving(stack, {"/of/b": exposed(4, 20)})
    scrapers = joined(f"worker={plain.base_url}", f"worker={at_path.base_url}/of/b")
    assert scrapers.scrape_before() == ""
    window = scrapers.scrape_after()
    assert (window.generation_tokens, window.settled) == (0, True)
    assert [role.window.generation_tokens for role in scrapers.list_role_windows()] == [0, 0]
    for server in (plain, at_path):
        assert len(server.asked) == 4
        assert not any("Authorization" in asked.head for asked in server.asked)


def test_a_router_may_have_nothing_to_show_yet(stack: ExitStack) -> None:
    smg = b'smg_router_requests_total{endpoint="completions"} 7\n'
    pages = {"/metrics": b"\n"}
    router, worker = serving(stack, pages), serving(stack, {"/metrics": exposed(3, 15)})
    with pytest.raises(MeasureError, match="/metrics is empty"):
        joined(f"worker={router.base_url}")
    scrapers = joined(f"router={router.base_url}", f"worker={worker.base_url}")
    assert scrapers.scrape_before() == f"{router.base_url}: /metrics is empty"
    pages["/metrics"] = smg
    assert scrapers.scrape_after().finished == 0
    assert [role.window.finished for role in scrapers.list_role_windows()] == [7, 0]
    with pytest.raises(MeasureError, match=r"is a router's \(sglang-router\): write router=URL"):
        joined(f"worker={router.base_url}")


@loop_over(
    ("path", "body", "message"),
    [
        ("/metrics", b"<html>\n", "/metrics is HTML, not Prometheus text: check role, host and port"),
        ("/metrics", b"python_info 1\n", "/metrics has none of the names of production_stack, vllm"),
        ("/", b"", "/metrics answers 404"),
    ],
)
def test_a_url_without_metrics_ends_the_command(path: str, body: bytes, message: str) -> None:
    with ExitStack() as stack:
        server = serving(stack, {path: body})
        with pytest.raises(MeasureError, match=f"--metrics-url decode={server.base_url}: {message}"):
            joined(f"decode={server.base_url}")
    with pytest.raises(MeasureError, match=r"--metrics-url worker=http.*: /metrics does not answer"):
        joined(f"worker=http://127.0.0.1:{closed_port()}")


def test_a_url_that_is_found_to_be_another_one_is_refused(stack: ExitStack) -> None:
    server = serving(stack, {"/metrics": exposed(3, 15)})
    with pytest.raises(UsageError, match=r"is the same as worker=.*would be summed twice: leave one out"):
        joined(f"worker={server.base_url}", f"worker={server.base_url}/metrics")


def test_ten_mebibytes_of_others_names_are_read(stack: ExitStack) -> None:
    server = serving(stack, {"/metrics": exposed(3, 15) + b"other_total 1\n" * 800_000})
    assert joined(f"worker={server.base_url}").scrape_before() == ""


def test_one_that_ends_in_the_run_keeps_its_last_counters(stack: ExitStack) -> None:
    seen, other = threading.Event(), serving(stack, {"/metrics": exposed(8, 40)})

    def script(asked: Asked) -> Answer:
        if asked.number > 5:
            seen.set()
            return Answer([whole(b"", "503 Service Unavailable")])
        return Answer([whole(exposed(asked.number, 5 * asked.number))])

    ending = stack.enter_context(ScriptedServer(script))
    scrapers = joined(f"worker={ending.base_url}", f"worker={other.base_url}")
    assert scrapers.scrape_before() == ""
    with scrapers.sampling():
        assert seen.wait(PATIENCE_S)
    window = scrapers.scrape_after()
    one, two = scrapers.list_role_windows()
    assert 0 < require(one.counted_s) <= require(one.ended_s)
    assert one.ended_why == "/metrics answers 503"
    assert (one.window.generation_tokens, one.window.finished, one.restarted) == (5 * 4, 4, False)
    assert (two.ended_s, window.generation_tokens, window.settled) == (None, 20, False)
    assert {series.where for series in scrapers.list_series()} == {one.label, two.label}


A, B = "worker=http://a:8000", "worker=http://b:8000"


@loop_over(("texts", "names", "paths"), read_tables("metrics_urls")["names"])
def test_each_has_a_role_a_short_name_and_its_own_path(
    texts: list[str], names: list[str], paths: list[str]
) -> None:
    places = parse_metrics_urls(texts)
    assert [place.name for place in places] == names
    assert [place.path for place in places] == paths
    assert [place.role for place in places] == [text.strip().partition("=")[0] for text in texts]


def test_a_call_and_a_campaign_name_them_in_a_list() -> None:
    options, _ = keywords.parse_call("http://router", None, {"metrics_url": [A, B]})
    assert options.metrics_url == (A, B)
    line = make_arguments({"base_url": "http://router", "metrics_url": [A, B]}, bench_parser())
    assert parse(line).metrics_url == (A, B)
    with pytest.raises(UsageError, match="metrics_url"):
        keywords.parse_call("http://router", None, {"metrics_url": 1})
