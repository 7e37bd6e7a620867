"""Repeats: a control request that may be done twice is sent again, later and later, and that is said."""

from __future__ import annotations

from contextlib import closing

import pytest

from fakes.scripted_server import Answer, Asked, End, whole
from fakes.virtual_loop import VirtualLoop
from fakes.virtual_network import VirtualServer
from loadgen.server import exchange
from loadgen.server.exchange import ControlAnswer, ControlLoop, Repeats, ServerAddress

WAITS_S = (0.2, 0.5, 1.0)
OK = Answer([whole(b'{"a": 1}')])
RESET = Answer([], End.RESET)


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


@pytest.mark.parametrize(
    ("answers", "status", "noted", "least_s"),
    [
        ([OK], 200, [], 0.0),
        ([RESET, OK], 200, ["/x does not answer: ReadError"], 0.2),
        ([busy("429 T"), busy("503 T"), OK], 200, ["/x answers 429", "/x answers 503"], 0.7),
        ([busy("429 T", "3"), OK], 200, ["/x answers 429"], 3.0),
        ([busy("503 T", "86400"), OK], 200, ["/x answers 503"], 30.0),
        ([busy("503 T", "Fri, 31 Dec 1999 23:59:59 GMT"), OK], 200, ["/x answers 503"], 0.2),
        ([busy("503 T")], 503, ["/x answers 503"] * 3, 1.7),
        ([busy("500 T"), OK], 500, [], 0.0),
        ([busy("400 T"), OK], 400, [], 0.0),
    ],
    ids=[
        "at once",
        "reset",
        "busy twice",
        "when it says",
        "not for a day",
        "a date",
        "for ever",
        "500",
        "400",
    ],
)
def test_a_request_is_sent_again_where_it_may_be_answered(
    answers: list[Answer], status: int, noted: list[str], least_s: float
) -> None:
    found, why, took_s = ask(answers)
    assert (found.status, why) == (status, noted)
    assert least_s <= took_s < least_s + 0.1
