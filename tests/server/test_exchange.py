"""Control requests: servers that drip, flood, nest or redirect, repeats, and the time of a response."""

from __future__ import annotations

import asyncio
import re
import struct
import time
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import pairwise
from types import SimpleNamespace

import pytest

from builders.loops import loop_over, loop_over_named, read_tables
from builders.required import require
from fakes import virtual_network
from fakes.scripted_server import Answer, Asked, End, ScriptedServer, closed_port, whole
from fakes.virtual_loop import VirtualLoop
from fakes.virtual_network import VirtualServer
from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.secrecy import hide_url_secrets
from loadgen.engines import engines
from loadgen.server import control, exchange, scraper
from loadgen.server.control import ServerInfo, ServerProbe
from loadgen.server.exchange import (
    AnswerTime,
    AnswerWatch,
    ControlAnswer,
    ControlLoop,
    Repeats,
    ServerAddress,
)
from loadgen.server.scraper import MetricsScraper

TABLES = read_tables("exchange")

SGLANG = engines.find_by_owner("sglang") or engines.UNKNOWN
LIMIT_S = 0.3
_RUN_S = 12.0
_LARGE = 40_000  # bytes: 10 segments, and the others a round trip later
WAITS_S = (0.2, 0.5, 1.0)
OK = Answer([whole(b'{"a": 1}')])
RESET = Answer([], End.RESET)
AWAY = "redirects to http://elsewhere.example"


def asked_of(base_url: str, limit_s: float = 5.0, most_bytes: int = 1 << 20, **headers: str) -> ControlAnswer:
    access = ServerAddress(base_url, headers)

    async def one() -> ControlAnswer:
        async with access.client(60.0) as client:
            return await exchange.ask_server(client, "GET", "/x?key=1", limit_s, most_bytes)

    return asyncio.run(one())


def moved(status: int, location: str) -> Answer:
    return Answer([whole(b"", f"{status} Moved", more=f"location: {location}\r\n")])


def served_of(listed: str) -> ServerInfo:
    """What is known of a server with this list of models."""
    with ScriptedServer(lambda _: Answer([whole(listed.encode())])) as server:
        return ServerProbe(ServerAddress(server.base_url)).ask("m", 0.0)


def drips(head: bytes, drop: bytes) -> Answer:
    pieces: list[bytes | float] = [drop, 0.05]
    return Answer([head, *pieces * 200])


@pytest.mark.whole
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(drips(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"), id="headers"),
        pytest.param(drips(b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n", b"x"), id="body"),
        pytest.param(drips(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), id="1xx for ever"),
        pytest.param(Answer([], End.HANG), id="nothing"),
    ],
)
def test_a_server_that_drips_is_given_up_in_time(answer: Answer) -> None:
    with ScriptedServer(lambda _: answer) as server:
        begin_s = time.monotonic()
        assert asked_of(server.base_url, LIMIT_S).why == f"/x does not answer within {LIMIT_S:g} s"
        assert time.monotonic() - begin_s < 5


@loop_over(
    ("answer", "status", "error"),
    [
        (Answer([whole(b"{}")]), 200, ""),
        (Answer([whole(b"", "404 No")]), 404, ""),
        (Answer([whole(b"x" * (3 << 20))]), 0, "answers more than 1 MiB"),
        (
            Answer([b"HTTP/1.1 200 OK\r\n\r\n", *([b"x" * 65536] * 40)], End.CLOSE),
            0,
            "answers more than 1 MiB",
        ),
        (Answer([b"SSH-2.0\r\n\r\n"], End.CLOSE), 0, "does not answer: "),
        (Answer([], End.CLOSE), 0, "does not answer: "),
        (moved(301, "/y"), 301, ""),
        (moved(307, "/y/?k=1"), 307, ""),
        (moved(300, "http://[::1/"), 300, "redirects to an invalid URL"),
        (moved(302, "http://u:p@elsewhere.example:81/y?k=1"), 302, f"{AWAY}:81 (302): give the final URL"),
        (moved(307, "//elsewhere.example/y"), 307, f"{AWAY} (307)"),
        (moved(302, "http://[::1/"), 0, "does not answer: Invalid URL in location header"),
    ],
)
def test_an_exchange_ends_in_a_status_or_in_words(answer: Answer, status: int, error: str) -> None:
    with ScriptedServer(lambda _: answer) as server:
        found = asked_of(server.base_url)
    assert found.status == status
    assert found.error.startswith(error)
    assert bool(found.error) == bool(error)
    assert "\n" not in found.why


def redirecting(elsewhere: str, path: str) -> Callable[[Asked], Answer]:
    """A script that answers one path with a redirect to another server, and is ready otherwise."""

    def script(asked: Asked) -> Answer:
        if asked.head.split(" ")[1] == path:
            return moved(307, f"{elsewhere}{path}")
        return Answer([whole(b'{"data":[{"id":"m"}]}')])

    return script


@loop_over("path", ["/health", "/v1/models", "/version"])
def test_a_redirect_is_named_and_nothing_is_sent_there(path: str) -> None:
    with ScriptedServer(lambda _: Answer([whole(b"{}")])) as other:
        with ScriptedServer(redirecting(other.base_url, path)) as server:
            access = ServerAddress(server.base_url, {"Authorization": "Bearer k"})
            with pytest.raises(MeasureError, match=rf"{path} redirects to {other.base_url} \(307\)"):
                ServerProbe(access).ask("m", 0.0)
        assert other.asked == []


@loop_over("path", ["", "/x/?key=1"])
def test_control_requests_follow_no_redirect_either(path: str) -> None:
    """Also a POST on the same server."""
    with ScriptedServer(lambda _: Answer([whole(b"{}")])) as other:
        location = path or f"http://u:p@{other.base_url.removeprefix('http://')}/"
        with ScriptedServer(lambda _: moved(308, location)) as server:
            access = ServerAddress(server.base_url, {"Authorization": "Bearer k"})
            where = f"{server.base_url}/x/" if path else other.base_url
            why = rf"redirects to {where} \(308\): give the final URL"
            assert re.search(why, control.reset_cache(access, SGLANG, 0.0))
            assert path or control.read_server_info(access, SGLANG) == {}
            with pytest.raises(MeasureError, match=why), control.trace_server(access, SGLANG, "/t"):
                raise AssertionError("no trace, and nobody said so")
        assert other.asked == []


@loop_over(
    ("body", "words"),
    [
        (b'{"error":{"message":"no\\nway\\u001b[2J \\ud800"}}', "no way\ufffd[2J \ufffd"),
        (b'{"error":"no"}', "no"),
        (b"plain\r\n words", "plain words"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"x" * 5000, "x" * 199 + "…"),
        (b'{"error":{"message":[1]}}', '{"error":{"message":[1]}}'),
        (b"[" * 100_000, "[" * 199 + "…"),
        (b"", ""),
    ],
)
def test_an_answers_own_words_are_a_short_line(body: bytes, words: str) -> None:
    assert ControlAnswer("/x", 500, body).message == words


@loop_over(
    "info",
    [
        b'{"internal_states":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"tp_size":' + b"9" * 5000 + b"}",
        b"\xff\xfe\x00",
        b'"\\ud800"',
        b"",
    ],
)
def test_what_a_server_says_of_itself_is_an_object_or_nothing(info: bytes) -> None:
    with ScriptedServer(lambda _: Answer([whole(info)])) as server:
        assert set(control.read_server_info(ServerAddress(server.base_url), SGLANG)) <= {"tp_size"}


@loop_over("length", ['"abc"', "1e400", "NaN", "[1]", "-1", "9" * 5000, "null", "true", "4096.5"])
def test_a_context_that_is_no_number_is_not_known(length: str) -> None:
    assert served_of(f'{{"data":[{{"id":"m","max_model_len":{length}}}]}}').max_model_len == 0


@loop_over(
    ("root", "kept"),
    [
        ('"/models/a"', "/models/a"),
        ('"org/name"', "org/name"),
        (f'"/{"x" * 10_000}"', ""),
        (f'"/{"x" * 256}"', ""),
        ('"/a\\u0000b"', ""),
        ('"\\ud800"', ""),
        ("[1]", ""),
        ("null", ""),
    ],
)
def test_a_root_that_is_no_path_is_not_kept(root: str, kept: str) -> None:
    assert served_of(f'{{"data":[{{"id":"m","root":{root}}}]}}').model_root == kept


@loop_over("name", ['"m\\ud800"', '"\\u001b]0;x"', "7", '""', f'"{"x" * 400}"', "[]"])
def test_a_model_whose_name_no_request_can_carry_is_not_taken(name: str) -> None:
    with ScriptedServer(lambda _: Answer([whole(f'{{"data":[{{"id":{name}}}]}}'.encode())])) as server:
        with pytest.raises(MeasureError, match="lists no served model: pass --model"):
            ServerProbe(ServerAddress(server.base_url)).ask(None, 0.0)
        assert ServerProbe(ServerAddress(server.base_url)).ask("m", 0.0).models == ()


SECRET = "s3cr3t"


@loop_over(
    ("url", "shown"),
    [
        ("http://h:1/a", "http://h:1/a"),
        ("http://u:p@h:1/a?k=v#f", "http://h:1/a"),
        ("u:p@h", "h"),
        ("http://[::1]:1/", "http://[::1]:1/"),
        ("http://h/\x1b[2J", "http://h/\ufffd[2J"),
    ],
)
def test_a_url_is_shown_without_secrets(url: str, shown: str) -> None:
    assert hide_url_secrets(url) == shown


def test_a_header_that_is_no_http_is_never_repeated() -> None:
    with ScriptedServer(lambda _: Answer([whole(b"{}")])) as server:
        found = asked_of(server.base_url, Authorization=f"Bearer {SECRET}\r")
    assert "check --header and OPENAI_API_KEY" in found.why
    assert SECRET not in found.why


def test_a_key_that_is_not_ascii_is_never_repeated() -> None:
    with pytest.raises(UsageError, match="not ASCII") as refused:
        ServerAddress("http://127.0.0.1:1", {"Authorization": f"Bearer {SECRET}é"}).client(1.0)
    assert SECRET not in str(refused.value)


def set_proxy(monkeypatch: pytest.MonkeyPatch, proxy: str, *names: str) -> None:
    for name in names:
        monkeypatch.setenv(name, proxy)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


@loop_over("variable", ["garbage", "ftp://u:s3cr3t@h", "http://u:s3cr3t@[::1"])
def test_a_proxy_variable_that_is_no_proxy_is_said(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_proxy(monkeypatch, variable, "HTTP_PROXY")
    with pytest.raises((UsageError, MeasureError), match=r"proxy|does not answer|is not ready") as refused:
        ServerProbe(ServerAddress("http://nonesuch.invalid")).ask("m", 0.0)
    assert SECRET not in str(refused.value)


@loop_over("host", ["127.0.0.1", "localhost", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]"])
def test_no_proxy_is_asked_for_this_machine(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = f"http://127.0.0.1:{closed_port()}"
    set_proxy(monkeypatch, proxy, "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
    bound = "::1" if host == "[::1]" else "127.0.0.1"
    with ScriptedServer(lambda _: Answer([whole(b"{}")]), host=bound) as server:
        assert asked_of(f"http://{host}:{server.port}").status == 200


def test_a_proxy_is_asked_for_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(lambda _: Answer([whole(b"{}")])) as proxy:
        set_proxy(monkeypatch, proxy.base_url, "http_proxy")
        assert asked_of("http://nonesuch.invalid").status == 200
        assert proxy.asked[0].head.startswith("GET http://nonesuch.invalid/x?key=1 ")


@loop_over(
    ("status", "origin", "message", "words"),
    TABLES["denials"],
)
def test_each_case_has_its_own_words(status: int, origin: str, message: str, words: str) -> None:
    answer = ControlAnswer("/x", status, message.encode())
    told = ServerAddress("http://u", key_origin=origin).explain_denial(answer, "u")
    assert told.startswith(words)
    assert "sk-1" not in told


@loop_over(
    ("time", "server_s", "on_way_s"),
    [
        (AnswerTime(0.008), 0.008, 0.0),
        (AnswerTime(0.008, 0.001), 0.009, 0.0),
        (AnswerTime(0.018, 0.0, 0.010), 0.008, 0.005),
        (AnswerTime(0.028, 0.0, 0.010, first_rounds=2), 0.008, 0.005),
        (AnswerTime(0.018, 0.020, 0.010, rest_rounds=1), 0.018, 0.015),  # it wrote slowly
        (AnswerTime(0.018, 0.004, 0.010, rest_rounds=1), 0.008, 0.009),  # more was on its way at first
        (AnswerTime(0.009, 0.009, 0.010, rest_rounds=2), 0.0, 0.014),
    ],
)
def test_known_round_trips_are_taken_off(time: AnswerTime, server_s: float, on_way_s: float) -> None:
    assert (time.server_s, time.on_way_s) == pytest.approx((server_s, on_way_s))


@loop_over(
    ("earlier", "later", "least"),
    [
        (AnswerTime(3, 2, 1, 2, 1), AnswerTime(2, 3, 0.5, 3, 0), AnswerTime(2, 2, 0.5, 2, 0)),
        (AnswerTime(3, 2, 1), AnswerTime(2, 1), AnswerTime(3, 2, 1)),
        (AnswerTime(2, 1), AnswerTime(3, 2, 1), AnswerTime(3, 2, 1)),
        (AnswerTime(2, 1), AnswerTime(1, 2), AnswerTime(1, 1)),
    ],
)
def test_the_least_of_several_answers(earlier: AnswerTime, later: AnswerTime, least: AnswerTime) -> None:
    assert earlier.merge(later) == least


@loop_over(
    ("size", "rounds"),
    [(0, 0), (1, 0), (14_480, 0), (14_481, 1), (43_440, 1), (43_441, 2), (101_360, 2), (1 << 20, 6)],
)
def test_windows_double_from_ten_segments_on(size: int, rounds: int) -> None:
    assert watched_time(size).rest_rounds == rounds


def watched_time(size: int, tls: SimpleNamespace | None = None) -> AnswerTime:
    """The time of an answer of so many bytes, after a handshake where there was one."""
    stream = SimpleNamespace(get_extra_info=lambda name: tls)

    async def watch() -> AnswerTime | None:
        watching = AnswerWatch()
        if tls is not None:
            await watching.note("connection.start_tls.complete", {"return_value": stream})
        watching.note_last(size)
        return watching.time

    return require(asyncio.run(watch()))


@loop_over(("version", "rounds"), [("TLSv1.3", 2), ("TLSv1.2", 3), (None, 2), ("a later one", 2)])
def test_a_handshake_has_its_round_trips(version: str | None, rounds: int) -> None:
    assert watched_time(0, SimpleNamespace(version=lambda: version)).first_rounds == rounds


def _sample(rtt_ms: float, server_ms: float, known_ms: float = 0.0) -> list[float]:
    """Sample a virtual server for 12 s; return the instants (s) at which it was scraped."""
    asked_s = list[float]()

    def script(asked: Asked) -> Answer:
        asked_s.append(server.time.ns / 1e9)
        answer = whole(b"vllm:num_requests_running 1\n" + b"#\n" * (_LARGE // 2))
        return Answer([server_ms / 1e3, answer[:14_000], rtt_ms / 1e3, answer[14_000:]])

    server = VirtualServer(script)
    server.tcp_info = lambda connection: bytes(148) + struct.pack("=I", round(known_ms * 1e3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(virtual_network, "LATENCY_NS", round(rtt_ms * 1e6 / 2))
        patch.setattr(scraper, "_SCRAPES_PER_S", 1000)  # which is of real seconds
        observer = MetricsScraper(ServerAddress(server.base_url))
        with closing(VirtualLoop(server)) as loop, suppress(TimeoutError):
            loop.run_until_complete(asyncio.wait_for(observer.sample_gauges(), _RUN_S))
    assert [lines.error for _, lines in observer.samples] == [""] * len(asked_s)
    return asked_s


@loop_over(
    ("rtt_ms", "server_ms", "known_ms", "samples"),
    [
        (0.02, 1.0, 0.02, 12),
        (0.02, 8.0, 0.02, 3),  # one in 4 s, as of a server on this machine
        (10.0, 1.0, 10.0, 12),
        (10.0, 8.0, 10.0, 3),
        (10.0, 8.0, 9.0, 3),  # a little less is known than was
        (200.0, 1.0, 200.0, 7),
        (200.0, 8.0, 200.0, 3),
        (10.0, 1.0, 0.0, 1),  # not known: the whole counts
    ],
)
def test_a_far_server_is_sampled_as_often_as_a_near_one(
    rtt_ms: float, server_ms: float, known_ms: float, samples: int
) -> None:
    asked_s = _sample(rtt_ms, server_ms, known_ms)
    assert len(asked_s) == samples
    # What the server spends is 0.2 % of the time at most.
    assert all(
        later - earlier >= server_ms / 1e3 / scraper.SAMPLING_SHARE for earlier, later in pairwise(asked_s)
    )


def busy(status: str, after: str = "") -> Answer:
    """An answer of a server that is too busy, with a Retry-After or without."""
    return Answer([whole(b"later", status, more=f"retry-after: {after}\r\n" if after else "")])


def ask(answers: list[Answer], method: str = "POST") -> tuple[ControlAnswer, list[str], float]:
    """The answer that stands (the last one is for ever), why it was asked again, and the seconds it took."""
    left, noted = list(answers), list[str]()

    def script(asked: Asked) -> Answer:
        return left.pop(0) if len(left) > 1 else left[0]

    server = VirtualServer(script)
    access = ServerAddress(server.base_url, loop=ControlLoop(new_loop=lambda: VirtualLoop(server)))

    async def one() -> ControlAnswer:
        async with access.client(60.0) as client:
            repeats = Repeats(WAITS_S, noted.append)
            return await exchange.ask_again(client, method, "/x", 5.0, body={}, repeats=repeats)

    with closing(VirtualLoop(server)):
        began_ns = server.time.ns
        found = access.loop.run(one())
    return found, noted, (server.time.ns - began_ns) / 1e9


@loop_over_named(
    ("answers", "status", "noted", "least_s"),
    {
        "at once": ([OK], 200, [], 0.0),
        "reset": ([RESET, OK], 200, ["/x does not answer: ReadError"], 0.2),
        "busy twice": ([busy("429 T"), busy("503 T"), OK], 200, ["/x answers 429", "/x answers 503"], 0.7),
        "when it says": ([busy("429 T", "3"), OK], 200, ["/x answers 429"], 3.0),
        "not for a day": ([busy("503 T", "86400"), OK], 200, ["/x answers 503"], 30.0),
        "a date": ([busy("503 T", "Fri, 31 Dec 1999 23:59:59 GMT"), OK], 200, ["/x answers 503"], 0.2),
        "for ever": ([busy("503 T")], 503, ["/x answers 503"] * 3, 1.7),
        "500": ([busy("500 T"), OK], 500, [], 0.0),
        "400": ([busy("400 T"), OK], 400, [], 0.0),
    },
)
def test_a_request_is_sent_again_where_it_may_be_answered(
    answers: list[Answer], status: int, noted: list[str], least_s: float
) -> None:
    found, why, took_s = ask(answers)
    assert (found.status, why) == (status, noted)
    assert least_s <= took_s < least_s + 0.1
