"""Several tokens a message and no usage: counted by the model's tokenizer, or doubted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders.tiny_tokenizer import make_tokenizer
from fakes.scripted_server import DONE, HEAD, LAST, Answer, ScriptedServer, api, chunk, token, whole
from fakes.virtual_run import serving
from loadgen import cli
from loadgen.records.text_tokens import TextTokenizer
from loadgen.report import run_directory, run_writer
from loadgen.report.run_directory import ARRIVALS, REPORT, RESULT

pytestmark = pytest.mark.usefixtures("elsewhere")
WORDS = [
    "import json",
    " and return",
    " the value",
    " of a key",
] * 20  # more messages than are parsed one by one
STREAM = [HEAD, *(chunk(token(words)) for words in WORDS), chunk(token("", "stop")), chunk(DONE), LAST]
WHOLE = [whole(b'{"choices":[{"text":"%b","finish_reason":"stop"}]}' % "".join(WORDS).encode())]
BASE = "--random-input-len 8 --random-output-len 400 --num-prompts 4 --max-concurrency 2 --no-observe --quiet"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("model"))


def bench(answer: list[bytes], *flags: str) -> tuple[Path, dict[str, Any]]:
    """A run of four requests: its directory, and the detailed result."""
    serve = ScriptedServer if "--workers" in flags else serving
    with serve(api(lambda _: Answer(answer))) as server:
        saved = ["--save-detailed", "--result-filename", "result.json"]
        argv = ["bench", "--base-url", server.base_url, *BASE.split(), "--no-ignore-eos", *saved, *flags]
        assert cli.main(argv) == 0
    (directory,) = Path("runs").iterdir()
    return directory, json.loads(Path("result.json").read_text("utf-8"))


@pytest.mark.parametrize(
    ("answer", "flags"),
    [pytest.param(STREAM, (), id="a stream"), pytest.param(WHOLE, ("--disable-stream",), id="in one piece"),
     pytest.param(STREAM, ("--workers", "2"), id="of two workers", marks=pytest.mark.whole)],
)  # fmt: skip
def test_with_the_tokenizer_every_figure_is_of_tokens(model: Path, answer: list[bytes], flags: Any) -> None:
    directory, result = bench(answer, "--tokenizer", str(model), *flags)
    count = TextTokenizer(model).count("".join(WORDS))
    assert count > 2 * len(WORDS) > 0
    assert result["output_lens"] == [count] * 4
    assert result["generated_texts"] == ["".join(WORDS)] * 4
    ours = result["loadgen"]
    assert (ours["metrics"]["counted_by_tokenizer"], ours["metrics"]["uncounted"]) == (4, 0)
    assert result["total_output_tokens"] == 4 * count
    assert result["output_throughput"] == pytest.approx(4 * count / result["duration"])
    if not flags:
        pairs = zip(result["latencies"], result["ttfts"], strict=True)
        tpot_ms = sum(1e3 * (latency - ttft) / (count - 1) for latency, ttft in pairs) / 4
        assert result["mean_tpot_ms"] == pytest.approx(tpot_ms)
    report = " ".join((directory / REPORT).read_text("utf-8").split())
    assert f"Total generated tokens: {4 * count} " in report
    assert (
        f"no usage: counted from the text, without special tokens, by the tokenizer {Path(model).name}"
        in report
    )
    assert "tokens-not-counted" not in {doubt["name"] for doubt in ours["verdict"]["doubts"]}


def test_a_run_whose_report_was_never_written_is_counted_from_its_journal(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_writer, "save", lambda *_: [])
    directory, result = bench(STREAM, "--tokenizer", str(model))
    assert not any((directory / name).exists() for name in (RESULT, ARRIVALS))
    run = run_directory.load(directory)
    assert run.metrics.total_output_tokens == result["total_output_tokens"]
    assert run.records.texts == [None] * 4


def test_a_tokenizer_that_cannot_be_read_is_reported(model: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 4000}')
    broken = tmp_path / "tokenizer.json"
    broken.write_text('{"model": {"vocab": {"a": 1, "b": 2}}}')
    directory, result = bench(STREAM, "--tokenizer", str(tmp_path))
    assert result["loadgen"]["verdict"]["level"] == "SUSPECT"
    report = " ".join((directory / REPORT).read_text("utf-8").split())
    assert f"not known: tokens of responses without usage: {broken}: cannot be read (" in report
