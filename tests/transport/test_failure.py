"""Certificates: what is wrong with one, in words and with the flags."""

from __future__ import annotations

import ssl

from builders.loops import loop_over
from loadgen.transport.failure import explain_distrust


def refusal(code: int, message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, message
    return error


@loop_over(
    ("code", "words"),
    [
        (10, ["is out of date (why): renew it", "--insecure", "(--ca-cert does not help)"]),
        (62, ["is for another host (why): check --base-url", "--insecure"]),
        (18, ["is self-signed (why): name it with --ca-cert FILE", "--insecure"]),
        (19, ["no trusted authority has signed (why): name the authority with --ca-cert FILE", "--insecure"]),
        (20, ["no trusted authority has signed (why): name the authority with --ca-cert FILE", "--insecure"]),
    ],
)
def test_each_kind_has_its_own_words(code: int, words: list[str]) -> None:
    told = explain_distrust(refusal(code, "why."))
    assert [word for word in words if word not in told] == []
    assert told.startswith("has a TLS certificate that ")


def test_the_cause_of_an_error_is_searched_and_no_other_error_is_one() -> None:
    outer = OSError("outer")
    outer.__cause__ = refusal(18, "x")
    assert "is self-signed" in explain_distrust(outer)
    assert explain_distrust(OSError("no route")) == ""


@loop_over(
    ("reason", "plain"),
    [("WRONG_VERSION_NUMBER", True), ("HTTP_REQUEST", True), ("CERTIFICATE_REQUIRED", False), ("", False)],
)
def test_a_server_without_tls_is_given_its_scheme(reason: str, plain: bool) -> None:
    error = ssl.SSLError(1, "[SSL] (_ssl.c:1006)")
    error.reason = reason
    outer = OSError("outer")
    outer.__context__ = error
    assert explain_distrust(outer).startswith("answers without TLS: give its address with http://") is plain
