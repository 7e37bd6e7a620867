"""Failure: the ways a request can fail, as values, never exceptions."""

from __future__ import annotations

import errno
from enum import StrEnum
from typing import Final

import msgspec

from loadgen.base import untrusted

_ANY = "pass --insecure to accept any certificate"
_INSECURE = f"{_ANY} (--ca-cert does not help)"
# OpenSSL's verify codes: expired and not yet valid; of another name, or address; signed by itself.
_DATES, _NAMES, _OWN = (9, 10), (62, 64), 18
_NO_TLS: Final = "answers without TLS: give its address with http:// in place of https:// (--base-url)"
# OpenSSL's names of what it reads where a record of TLS was to come.
_PLAIN_REASONS: Final = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "PACKET_LENGTH_TOO_LONG",
    "RECORD_LAYER_FAILURE",
)
_DEEPEST: Final = 8  # causes of an error


class FailureKind(StrEnum):
    """Every way a request can fail; the detail holds what the server reported."""

    CONNECT = "connect"  # no connection, or one refused or lost before the request was sent
    TIMEOUT = "timeout"  # --request-timeout passed
    STALL = "stall"  # --stall-timeout passed without a token (pings do not count)
    HTTP_STATUS = "http-status"  # any status but 200 and 429
    # Prompt and answer are more than the model's context: by the server's error.
    CONTEXT_LIMIT = "context-limit"
    RATE_LIMITED = "rate-limited"  # a 429: the server takes fewer requests or tokens a minute
    IN_BAND = "in-band-error"  # a `data: {"error": …}`, `event: error` or the like after a 200
    ABORTED = "aborted"  # a finish_reason such as abort, error, content_filter: the server ended it early
    TRUNCATED = "truncated"  # the stream ended before its end
    MALFORMED = "malformed"  # bytes that are not HTTP, SSE or the API's JSON; numbers that cannot be
    NOT_STREAMED = "not-streamed"  # a stream was asked for and one whole body came
    EMPTY = "empty"  # a complete answer without a token
    UNNAMED = "unnamed"  # an answer without the id by which the next turn names it (--assistant server)
    CANCELLED = "cancelled"  # the run was stopped while it was under way
    USER_CANCELLED = "user-cancelled"  # given up on purpose, as the plan has it (--cancel-rate): no failure
    MEMORY = "memory"  # cut off: the answers under way held more than the memory that they may have together
    LOST = "lost"  # the capturing process died while this request was under way


CUT_OFF = frozenset({FailureKind.CANCELLED, FailureKind.LOST})  # by this side: the server did not fail them
CUT_SHORT = frozenset({FailureKind.TRUNCATED, FailureKind.USER_CANCELLED})  # the answer may be whole before
NO_EVIDENCE = CUT_OFF | {FailureKind.USER_CANCELLED}  # of what the server would have done


class Failure(msgspec.Struct, frozen=True):
    """Why one request failed."""

    kind: FailureKind
    detail: str = ""


CANCELLED = Failure(FailureKind.CANCELLED, "stopped while under way")
USER_CANCELLED = Failure(FailureKind.USER_CANCELLED, "cancelled as planned")


def fail_unconnected(error: Exception) -> Failure:
    """Make the failure of a request for which no connection could be made."""
    if getattr(error, "errno", 0) == errno.EADDRNOTAVAIL:
        return Failure(
            FailureKind.CONNECT,
            "no source port is free: wait a minute for those of closed connections, or pass --source-address",
        )
    distrust = explain_distrust(error)
    why = f"the server {distrust}" if distrust else str(error) or type(error).__name__
    return Failure(FailureKind.CONNECT, why)


def explain_distrust(error: BaseException) -> str:
    """Explain why no TLS connection can be trusted or made, and what to do; "" for any other error."""
    import ssl  # not for every command to import

    causes: list[BaseException] = []
    next_one: BaseException | None = error
    while next_one is not None and len(causes) < _DEEPEST:
        causes.append(next_one)
        next_one = next_one.__cause__ or next_one.__context__
    cause = next((each for each in causes if isinstance(each, ssl.SSLCertVerificationError)), None)
    if cause is None:
        errors = (each for each in causes if isinstance(each, ssl.SSLError))
        return _NO_TLS if any(each.reason in _PLAIN_REASONS for each in errors) else ""
    reason = untrusted.read_text(cause.verify_message or cause.reason or "is not valid").rstrip(".")
    if cause.verify_code in _DATES:
        problem = f"is out of date ({reason}): renew it, or {_INSECURE}"
    elif cause.verify_code in _NAMES:
        problem = f"is for another host ({reason}): check --base-url, or {_INSECURE}"
    elif cause.verify_code == _OWN:
        problem = f"is self-signed ({reason}): name it with --ca-cert FILE, or {_ANY}"
    else:
        problem = (
            f"no trusted authority has signed ({reason}): name the authority with --ca-cert FILE, or {_ANY}"
        )
    return f"has a TLS certificate that {problem}"
