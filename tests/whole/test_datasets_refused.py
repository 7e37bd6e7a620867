"""What cannot be sent is refused in one line before anything of it is sent; what was measured is kept."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders.loops import loop_over
from fakes.counting_api import CountingApi, Refusal, refuses, refuses_ids, refuses_images
from fakes.surroundings import Service, ended, killed, report, started, succeeded
from fakes.virtual_run import serving
from loadgen import cli
from loadgen.base.errors import ExitCode

pytestmark = pytest.mark.usefixtures("elsewhere")
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
CHAT = ["--backend", "openai-chat"]
TRACE = ["--trace", str(EXAMPLES / "timed.jsonl"), "--trace-format", "timed"]
OF_THE_FILES = (b"salty", b"Oslo", b"inhabitants? Answer", b"What colour", b"bright or dark")
ROWS = 10_000


@loop_over(("words", "refusal", "reported"), [
    ([*CHAT, "--dataset-path", str(EXAMPLES / "bodies_with_tools.jsonl")],
     refuses("tools", '"auto" tool choice requires --enable-auto-tool-choice'), "tool"),
    ([*CHAT, "--dataset-path", str(EXAMPLES / "images.jsonl")], refuses_images, "image"),
    ([*CHAT, "--dataset-path", str(EXAMPLES / "bodies_with_tools.jsonl")],
     refuses("response_format", "response_format is not supported by this model"), "response_format"),
    (TRACE, refuses_ids, "prompt"),
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


def test_a_refused_ignore_eos_is_left_out_and_the_other_way_named(caplog: pytest.LogCaptureFixture) -> None:
    api = CountingApi(refusal=refuses("ignore_eos", "Unrecognized request argument supplied: ignore_eos"))
    with serving(api) as server:
        assert cli.main(["bench", "--quiet", "--base-url", server.base_url, *TRACE]) == ExitCode.FIGURES
    (warning,) = caplog.messages
    assert "left out: ignore_eos" in warning
    assert "--min-tokens" in warning
    assert all(b"ignore_eos" not in body for body in api.served)


@loop_over(("content", "reported"), [
    (b"", "is empty"),
    (b"\x1f\x8b\x08\x00rest", "gzip cannot unpack it"),
    (b'{"prompt": "caf\xe9"}\n', "UTF-8"),
    (b'{"prompt": "a", "output_tokens": 4}\n{"timestamp": 0, "input_length": 4, "output_length": 4}\n',
     "row 2"),
    (b'{"prompt": "a", "output_tokens": 4}\n{"prompt": 7, "output_tokens": 4}\n', "row 2"),
    (b'{"prompt": "a"}\n', "row 1"),
    (b'{"text": "a"}\n', "row 1"),
    (b'{"prompt": "a", "output_tokens": -3}\n', "row 1"),
    (b"not JSON\n", "row 1"),
])  # fmt: skip
def test_a_bad_file_is_refused_by_file_and_row_and_nothing_is_sent(
    content: bytes, reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("rows.jsonl").write_bytes(content)
    with serving(api := CountingApi()) as server:
        code = cli.main(["bench", "--quiet", "--base-url", server.base_url, "--dataset-path", "rows.jsonl"])
    out, err = capsys.readouterr()
    assert (code, out, api.served) == (ExitCode.USAGE, "", [])
    assert err.count("\n") == 1
    assert "rows.jsonl" in err
    assert reported in err


def test_a_missing_file_is_refused_before_a_server_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(api := CountingApi()) as server:
        assert (
            cli.main(["bench", "--base-url", server.base_url, "--dataset-path", "nowhere.jsonl"])
            == ExitCode.USAGE
        )
    assert "nowhere.jsonl" in capsys.readouterr().err
    assert api.served == []


@pytest.fixture
def service() -> Iterator[Service]:
    with Service().serving() as up:
        yield up


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Ten thousand rows, of which a run that is ended sends few."""
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        "".join(json.dumps({"prompt": f"a b {i}", "output_tokens": 3}) + "\n" for i in range(ROWS))
    )
    return file


def words_of(service: Service, file: Path) -> list[str]:
    words = (
        f"bench --base-url {service.base_url} --dataset-path {file} --num-prompts {ROWS} --max-concurrency 2"
    )
    return [sys.executable, "-m", "loadgen", *words.split(), "--no-observe", "--quiet"]


@pytest.mark.whole
def test_after_kill_9_the_rows_that_were_answered_are_reported(
    service: Service, prompts: Path, tmp_path: Path
) -> None:
    client = started(words_of(service, prompts), tmp_path)
    at_s = killed(client, service, 40)
    found = report(tmp_path)
    assert found.out.startswith("PARTIAL")
    assert f"of {ROWS}" in found.out
    assert succeeded(found.out) >= service.journalled(at_s) >= 40


@pytest.mark.whole
def test_ctrl_c_ends_a_run_of_a_file_as_any_other(service: Service, prompts: Path, tmp_path: Path) -> None:
    client = started(words_of(service, prompts), tmp_path)
    service.until(20)
    client.send_signal(signal.SIGINT)
    found = ended(client)
    assert found.code == ExitCode.INTERRUPTED
    assert found.out.startswith("PARTIAL")
