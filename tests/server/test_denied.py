"""A 401 and a 403, with a key and without."""

from __future__ import annotations

from builders.loops import loop_over
from loadgen.server.exchange import explain_denial


@loop_over(
    ("status", "origin", "message", "words"),
    [
        (
            401,
            "",
            "x",
            "u needs an API key and none was sent (401): set OPENAI_API_KEY, or pass --api-key-file",
        ),
        (403, "", "x", "u needs an API key and none was sent (403): set OPENAI_API_KEY"),
        (401, "OPENAI_API_KEY", "sk-1", "u does not accept the key from OPENAI_API_KEY (401): check that it"),
        (401, "--api-key-file k", "", "u does not accept the key from --api-key-file k (401)"),
        (403, "OPENAI_API_KEY", "no", "u denies this to the key from OPENAI_API_KEY (403: no): check what"),
        (403, "the header x-api-key", "", "u denies this to the key from the header x-api-key (403): check"),
    ],
)
def test_each_case_has_its_own_words(status: int, origin: str, message: str, words: str) -> None:
    told = explain_denial("u", status, origin, message)
    assert told.startswith(words)
    assert "sk-1" not in told
