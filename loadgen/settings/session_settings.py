"""Session settings: how many conversations there are, what their turns hold, and when each is due."""

import re
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator

from loadgen.base import parsing
from loadgen.base.errors import UsageError
from loadgen.base.parsing import integer_between, number_between
from loadgen.base.untrusted import read_number
from loadgen.settings.data_settings import is_stepped, reads_data
from loadgen.settings.load_settings import ARRIVALS
from loadgen.settings.request_settings import CHAT_APIS
from loadgen.settings.setting import (
    SESSIONS,
    Conflict,
    Makes,
    Requirement,
    Setting,
    Values,
    convert_number,
    list_rows,
)

_HEADER_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_OWN_HEADERS = ("host", "content-type", "content-length", "x-request-id", "transfer-encoding", "connection")
_MOST_FACTOR = 1000.0
RECORDED_DELAYS, NO_DELAYS = "recorded", "none"
_CONVERSATIONS = "pass --dataset-path FILE of conversations, --turns N, or --trace-replay closed"


def _check_delays(value: Any) -> str:
    """Return --turn-delays, text or number, as text: recorded, none or a factor to 1000; else ValueError."""
    text = str(value).strip()
    if text in (RECORDED_DELAYS, NO_DELAYS):
        return text
    factor = read_number(text)
    if factor is None or factor > _MOST_FACTOR:
        raise ValueError(f"give recorded, none, or a factor from 0 to {_MOST_FACTOR:g}")
    return text


def _check_header_name(value: str) -> str:
    """Return a header's name, or "", unchanged; raises ValueError if it is invalid or the request's own."""
    if value and (_HEADER_NAME.fullmatch(value) is None or value.lower() in _OWN_HEADERS):
        raise ValueError("give the name of a header that is none of the request's own")
    return value


def _may_be_conversations(values: Values) -> bool:
    """Whether --turns is given, or a data file without a name, or a trace is sent as sessions."""
    recognised = values["dataset_path"] and values["dataset_name"] is None and not values["trace"]
    return values["turns"] is not None or bool(recognised) or values["trace_replay"] == "closed"


_NEEDS = Requirement(_may_be_conversations, "{flag} applies to conversations: " + _CONVERSATIONS)
# A session keeps its place until its last turn, so no cap on requests can be held by it.
_HELD = (
    Conflict(
        is_stepped,
        "--schedule of a concurrency does not go with conversations, of which each runs to its end: use "
        "--max-concurrency N, or a schedule of a rate at which they begin",
    ),
    Conflict(
        "prefill_concurrency",
        "--prefill-concurrency does not go with conversations, whose next turn cannot wait: use "
        "--max-concurrency N, the conversations at once",
    ),
)
_ALONE = (Conflict("ladder", "{flag} does not apply to a ladder: each of its requests stands alone"), *_HELD)
_MAKES = "--turns makes conversations, and %s has requests of its own: leave out one of them"
_BEGINS = "--users has turns at --user-rate, and {other} begins sessions: leave out one"
_PAUSES = "--users has turns at --user-rate, and {other} pauses between them: leave out one"

# fmt: off
_session = partial(Setting, Makes.LOAD, group=SESSIONS, rules=(_NEEDS, *_ALONE))


class SessionKeys(BaseModel, frozen=True, defer_build=True):
    """The settings of how the turns of conversations follow one another."""

    num_sessions: Annotated[int | None, _session("number of conversations to send (default: all of the "
        "file); --max-concurrency limits those at once, --request-rate is that at which they begin",
        read=integer_between(1, parsing.MOST_REQUESTS), metavar="N")] = None
    turns: Annotated[int | None, _session("make conversations of N turns: --random-input-len and "
        "--random-output-len are those of a turn", read=integer_between(1, parsing.MOST_TURNS), metavar="N",
        rules=(
            _NEEDS, Conflict(reads_data, _MAKES % "{data}"), Conflict("dataset_path", _MAKES % "{other}"),
            Conflict("classes",
                "--turns and --class: a turn has no class: give --input-dist and --output-dist"),
            Conflict(lambda values: values["backend"] not in (None, "openai", *CHAT_APIS),
                "--backend {backend}: --turns makes conversations of the chat API: use "
                "--backend openai-chat"), *_ALONE))] = None
    think_time: Annotated[str, BeforeValidator(convert_number), _session("seconds before each turn but "
        "the first (default 0), or a distribution of them", metavar="S",
        rules=(Requirement("turns", "--think-time is of conversations that are made here: pass --turns N; "
            "the delays of a file are as recorded, or by --turn-delays X"), *_ALONE))] = ""
    turn_delays: Annotated[str, BeforeValidator(_check_delays), _session("delays between turns: recorded "
        "(default), none, or a factor on the recorded ones", metavar="X")] = RECORDED_DELAYS
    # `live` sends the server's own answers back as the history, `server` leaves the history to the server.
    assistant: Annotated[Literal["recorded", "live", "server"], _session("responses that are sent back. "
        "recorded (default): the same for every server; live: the server's own; server: none, as it keeps "
        "them (/v1/responses)")] = "recorded"
    session_header: Annotated[str, AfterValidator(_check_header_name), Setting(Makes.REQUEST,
        "header that carries the session's name, as X-Session-ID", group=SESSIONS, metavar="NAME",
        rules=(_NEEDS, *_ALONE))] = ""
    max_requests: Annotated[int | None, _session("most requests in flight, of all sessions; "
        "--max-concurrency limits the sessions under way", read=integer_between(1, parsing.MOST_STREAMS),
        metavar="N")] = None
    turn_timeout: Annotated[float | None, Setting(Makes.CLIENT, "longest time of a turn in seconds; a "
        "longer one ends its session", read=number_between(0.001, parsing.MOST_SECONDS), metavar="S",
        group=SESSIONS, rules=(_NEEDS, *_ALONE))] = None
    users: Annotated[int | None, _session("number of users, each with a session at a time, whose turns "
        "are due at --user-rate", read=integer_between(1, parsing.MOST_STREAMS), metavar="N",
        rules=(
            _NEEDS, Requirement("user_rate", "--users needs --user-rate R, turns per second of each"),
            Conflict(lambda values: values["max_concurrency"] not in (None, values["users"]),
                "--users {users} and --max-concurrency {max_concurrency} are two: "
                "each user has a session at a time: leave out --max-concurrency"),
            Conflict("request_rate", _BEGINS.replace("{other}", "{other} {request_rate:g}")),
            *(Conflict(key, _BEGINS) for key in ARRIVALS[:-1]),
            Conflict("turn_delays", _PAUSES), Conflict("think_time", _PAUSES), *_ALONE))] = None
    user_rate: Annotated[float | None, _session("turns per second of each user",
        read=number_between(1e-9, 1e9), metavar="R",
        rules=(_NEEDS, Requirement("users", "--user-rate needs --users N"), *_ALONE))] = None
# fmt: on


def check_requests(values: Values, kind: str, branches: bool | None) -> None:
    """Raise UsageError if settings do not go with turns, or session settings are of data without turns.

    `kind` is the data's; `branches`: whether its sessions have parallel requests; None: it has no sessions.
    """
    if branches is not None:
        if values["users"] and branches:
            raise UsageError(
                "--users has turns one after another, and these sessions have requests next to each other: "
                "use --max-concurrency N, the sessions at once"
            )
        for conflict in _ALONE:
            if conflict.other(values) if callable(conflict.other) else values[conflict.other]:
                raise UsageError(conflict.message.format(flag="--turns"))
        return
    for row in list_rows(SessionKeys):
        if values[row.name] != row.default:
            path = f" {values['dataset_path']}" if values["dataset_path"] else ""
            raise UsageError(
                f"{row.option} applies to conversations, and --dataset-path{path} holds {kind}: "
                f"{_CONVERSATIONS}"
            )
