"""Data sets and traces from the command line to a recording server: what the file holds is what arrives."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import msgspec
import pytest

from builders.loops import loop_over
from fakes.counting_api import CountingApi, Refusal, refuses_ids, refuses_images
from fakes.scripted_server import Answer, Asked, End
from fakes.virtual_run import serving
from loadgen import cli

pytestmark = pytest.mark.usefixtures("elsewhere")
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
DATA = ROOT / "tests" / "data" / "datasets"
CHAT = ["--backend", "openai-chat"]
LAID_OVER = {"stream", "stream_options", "ignore_eos"}  # by the plan, on every body
Values = dict[str, bytes]


def bench(api: CountingApi, *words: str | Path) -> int:
    """A run against a recording server, one request at a time."""
    with serving(api) as server:
        line = ["bench", "--quiet", "--base-url", server.base_url, "--max-concurrency", "1"]
        return cli.main([*line, *map(str, words)])


def values(body: bytes) -> Values:
    """The bytes of each field's value, as they stand."""
    decoded = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return {name: bytes(value) for name, value in decoded.items()}


def rows(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()


def arrived(api: CountingApi, count: int) -> list[Values]:
    """The bodies of the run: what came before them was sent to learn what the server takes."""
    assert len(api.served) >= count
    return [values(body) for body in api.served[-count:]]


@pytest.mark.parametrize(("file", "words", "laid"), [
    pytest.param(EXAMPLES / "bodies_with_tools.jsonl", [], {}, id="tools and a JSON schema"),
    pytest.param(EXAMPLES / "images.jsonl", [], {}, id="an image as a data URL"),
    pytest.param(DATA / "odd_bodies.jsonl", [], {}, id="numbers and escapes as they are written"),
    pytest.param(DATA / "odd_bodies.jsonl", ["--temperature", "0.5", "--extra-body", '{"top_k": 7}'],
                 {"temperature": b"0.5", "top_k": b"7"}, id="what flags lay over"),
])  # fmt: skip
def test_whole_bodies_arrive_as_they_stand_in_the_file(file: Path, words: list[str], laid: Values) -> None:
    api = CountingApi()
    assert bench(api, *CHAT, "--dataset-path", file, *words) == 0
    wanted = [values(row) for row in rows(file)]
    sent = arrived(api, len(wanted))
    for want, got in zip(wanted, sent, strict=True):
        assert {name: value for name, value in got.items() if name in laid} == laid
        assert got["stream"] == b"true"
        assert got["model"] == want.get("model", b'"m"')
        over = {*LAID_OVER, *laid, "model"}
        assert {n: v for n, v in got.items() if n not in over} == {
            n: v for n, v in want.items() if n not in over
        }


# What cannot be sent is refused in one line before anything of it is sent.


OF_THE_FILES = (b"salty", b"Oslo", b"inhabitants? Answer", b"What colour", b"bright or dark")


@loop_over(("words", "refusal", "reported"), [
    (["--backend", "openai-chat", "--dataset-path", str(EXAMPLES / "images.jsonl")], refuses_images, "image"),
    (["--trace", str(EXAMPLES / "timed.jsonl"), "--trace-format", "timed"], refuses_ids, "prompt"),
])  # fmt: skip
def test_what_a_server_refuses_ends_the_command_before_the_file_is_sent(
    words: list[str], refusal: Refusal, reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api = CountingApi(refusal=refusal)
    with serving(api) as server:
        code = cli.main(["bench", "--quiet", "--base-url", server.base_url, *words])
    out, err = capsys.readouterr()
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert reported in err
    assert [body for body in (*api.served, *api.refused) if any(text in body for text in OF_THE_FILES)] == []


# Chat without a tokenizer: prompts of words whose length only the server knows.


WORDS = [
    "--backend", "openai-chat", "--random-output-len", "3", "--max-concurrency", "2", "--num-prompts", "20",
]  # fmt: skip


@pytest.mark.parametrize(
    ("tokenize", "answered", "path"),
    [(False, 0, "/v1/chat/completions"), (False, 3, "/v1/chat/completions"), (True, 3, "/tokenize")],
    ids=["never", "only at first", "only at first, by /tokenize"],
)
@pytest.mark.parametrize("flag", ["--request-timeout", "--stall-timeout"])
def test_a_server_that_stops_counting_costs_one_timeout_and_a_line(
    tokenize: bool, answered: int, path: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api, posts = CountingApi(tokenize=tokenize), itertools.count()

    def script(asked: Asked) -> Answer:
        counts = asked.head.startswith("POST ") and (tokenize or "/tokenize" not in asked.head)
        return Answer([], End.HANG) if counts and next(posts) >= answered else api(asked)

    with serving(script) as server:
        url = f"{server.base_url}{path}"
        words = ["bench", "--quiet", "--base-url", server.base_url, *WORDS, "--turns", "2", flag, "0.5"]
        begin_s = time.monotonic()
        assert cli.main(words) == 1
        assert time.monotonic() - begin_s < 5.0
    fault = f"{url}, asked how many tokens it counts in a prompt, does not answer within 0.5 s"
    assert (
        capsys.readouterr().err == f"loadgen: {fault}: pass --tokenizer to need no answer, or raise {flag}\n"
    )
