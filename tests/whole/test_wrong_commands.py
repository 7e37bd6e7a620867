"""Command lines that cannot be: each is one line on the standard error, exit code 2, nothing is started."""

from __future__ import annotations

import gzip
import itertools
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from builders import made_runs
from builders.loops import loop_over, read_tables
from loadgen import cli

# A row: parts of command lines, of which a list has alternatives, and what is said where that matters.
TABLES = read_tables("wrong_commands")
BIG = "1" + "0" * 20
SHORT = {
    "HERE": "--base-url http://127.0.0.1:1",
    "TLS": "--base-url https://127.0.0.1:1",
    "LAUNCHED": "--launch vllm --model org/name",
    "BIG": BIG,
    "DIGITS": "9" * 5000,
    "DEEP": '{"a":' * 3000 + "1" + "}" * 3000,
    "LONG": "a" * 300,
    "PATH": "a/" * 3000 + "x",
    "NAME": "n" * 5000,
}


def spell(parts: Sequence[str | Sequence[str]]) -> Iterator[str]:
    """Each command line of a row."""
    for words in itertools.product(*([part] if isinstance(part, str) else part for part in parts)):
        yield re.sub("<([A-Z]+)>", lambda found: SHORT[found[1]], " ".join(words)).strip()


NAMES = [(line, says) for parts, says in TABLES["says"] for line in spell(parts)]
LINES = [line for parts in TABLES["lines"] for line in spell(parts)]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    contents = {
        "deep.toml": "a = " + "[" * 5000,
        "dotted.toml": ".".join(["a"] * 100_000) + " = 1",
        "big.toml": f"input_len = {BIG}",
        "huge.toml": "#" * 2_000_000,
        "latin.toml": 'name = "é"',
        "empty.toml": "",
        "zeroes.toml": 'profiles = ["a\\u0000/b.toml"]\n[[checkpoints]]\nname = "x"\n',
        "bigseed.toml": f'profiles = ["smoke"]\nseed = {BIG}\n[[checkpoints]]\nname = "x"\n',
    }
    for name, text in contents.items():
        Path(name).write_text(text, "latin-1")
    Path("directory.toml").mkdir()
    Path("zero.toml").symlink_to("/dev/zero")
    published = Path(__file__).parents[1] / "data/results/vllm_bench_serve.stdout.txt"
    Path("a.md").write_text(published.read_text("utf-8"), "utf-8")
    monkeypatch.delenv("NO_SUCH_VARIABLE", raising=False)
    for name in ("empty", "RUN"):
        Path(name).mkdir()
    made_runs.keep(made_runs.run(), Path("RUN"))
    Path("none.jsonl").touch()
    Path("packed.gz").write_bytes(gzip.compress(b"{}")[:-4])
    for key, value in (("tokenizer", "/no/such"), ("hardware", "foo"), ("model_config", "/no/such")):
        row = f'[[checkpoints]]\nname = "x"\npreset = "instant"\n{key} = "{value}"\n'
        Path(f"{key}.toml").write_text(f'profiles = ["smoke"]\n{row}', "utf-8")


def files_in(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


@pytest.mark.whole
@pytest.mark.usefixtures("files")
@loop_over(("line", "says"), [
    *((line, "") for line in LINES),
    *(row for row in NAMES if find_spec("scipy") or row[0][:7] != "compare"),
])  # fmt: skip
def test_a_wrong_command_line_is_one_line(line: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = files_in(Path())
    assert cli.main(shlex.split(line)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"loadgen: [^\n]+\n", said.err)
    assert says in said.err
    assert len(said.err) < 1000
    assert files_in(Path()) == before, "nothing is started or left behind"


@pytest.mark.whole
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="FIFOs are Unix's")
@pytest.mark.timeout(20)
@pytest.mark.parametrize(("line", "name"), [
    *((f"{verb} {{}}/a.toml", "a.toml") for verb in ("profiles", "bench --profile", "campaign")),
    ("campaign --resume {}", "campaign.json"), ("data {}/a.jsonl", "a.jsonl"), ("data {}/a.csv", "a.csv"),
    ("data --trace {}/a.jsonl", "a.jsonl"),
    ("data --profile smoke --prompt-format corpus --prompt-corpus {}/a.txt", "a.txt"),
    ("data --profile smoke --input-dist histogram:{}/a.csv", "a.csv"),
    ("bench --profile smoke --api-key-file {}/key", "key"), ("compare {}/a.json", "a.json"),
    ("compare {}", "sweep.json"), ("compare {}", "limit.json"), ("audit {}/a.md", "a.md"),
    *(("report {}", name) for name in ("result.json", "sweep.json", "limit.json", "journal.bin")),
    ("merge {}", "result.json"),
])  # fmt: skip
def test_a_fifo_is_refused_and_not_waited_for(
    line: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / name)
    assert cli.main(shlex.split(line.format(tmp_path))) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.count("\n") == 1
    assert found.err.startswith("loadgen: ")
