"""What a command line names and is not there: it ends every verb, in one line that names it."""

from __future__ import annotations

import gzip
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from builders import made_runs
from builders.loops import loop_over
from loadgen import cli

HERE, TLS = "--base-url http://127.0.0.1:1", "--base-url https://127.0.0.1:1"
LAUNCHED = "--launch vllm --model org/name"
MEASURED = ("bench", "ladder")  # the same flags
MISSING = [
    # of a run: flag and value, what else is needed, what the line says
    ("--tokenizer /no/such", "", "--tokenizer /no/such: there is no such directory"),
    ("--tokenizer ./no", HERE, "--tokenizer ./no: there is no such directory"),
    ("--tokenizer empty", HERE, "--tokenizer empty holds no files of a tokenizer or a model"),
    ("--tokenizer a.md", HERE, "--tokenizer a.md is a file: name the directory that it is in"),
    ("--tokenizer /no/such", LAUNCHED, "--tokenizer /no/such: there is no such directory"),
    ("--tokenizer /no/such", "--preset instant", "--tokenizer /no/such: there is no such directory"),
    ("--hardware foo", "", "--hardware foo: unknown, there are "),
    ("--hardware jetson-tor", HERE, "--hardware jetson-tor: unknown, the nearest is jetson-thor"),
    ("--hardware 0xh100", HERE, "--hardware 0xh100: unknown"),
    ("--model-config /no/such", HERE, "/no/such cannot be read: No such file or directory"),
    ("--model-config empty", HERE, "empty"),
    ("--api-key-file /no/such", HERE, "--api-key-file '/no/such': No such file or directory"),
    ("--api-key-file empty", HERE, "--api-key-file empty is not a regular file"),
    ("--api-key-env NO_SUCH_VARIABLE", HERE, "--api-key-env NO_SUCH_VARIABLE: it is not set"),
    ("--ca-cert /no/such", TLS, "--ca-cert /no/such: No such file or directory"),
    ("--client-cert /no/such", TLS, "--client-cert /no/such: No such file or directory"),
    ("--client-key /no/such", f"{TLS} --client-cert a.md", "--client-key /no/such: No such file"),
    ("--preset nonesuch", "", "no preset named 'nonesuch'"),
    ("--preset roofline/foo/Qwen3-8B", "", "foo: unknown"),
    ("--preset roofline/h200/NoSuchModel", "", "NoSuchModel"),
    ("--profile nonesuch", "", "unknown profile 'nonesuch'"),
    ("--profile ./no.toml", HERE, "profile no.toml: No such file"),
    ("--layout none", HERE, "--layout none: no such layout"),
    ("--model /no/such", "--launch vllm", "/no/such does not exist"),
    ("--model ./no", "--launch sglang", "./no does not exist"),
    ("--model ~/no", "--launch transformers", "no does not exist"),
    ("--model empty", "--launch vllm", "empty holds no model: there is no config.json in it"),
    ("--model /no/such", "--launch-command 'true {model} {port}'", "/no/such does not exist"),
    ("--server-python /no/such", LAUNCHED, "--server-python /no/such is not an interpreter"),
    ("--launch-command 'no-such {port}'", "", "no-such is not installed"),
    ("--container-engine no-such", "--launch-container IMAGE --model org/name", "no-such is not on PATH"),
]
NO_FILE = ": No such file or directory: give a file that can be read"
UNREAD = [
    # of what a run sends: flags, and what the line says
    ("--dataset-path nope", f"--dataset-path nope{NO_FILE}"),
    *(
        (f"--dataset-path nope --dataset-name {name}", f"--dataset-path nope{NO_FILE}")
        for name in ("custom", "sharegpt", "timed_trace")
    ),
    ("--dataset-path empty", "--dataset-path empty: is a directory: give a file"),
    ("--dataset-path none.jsonl", "--dataset-path none.jsonl: is empty"),
    ("--dataset-path packed.gz", "--dataset-path packed.gz: is damaged or cut short: gzip cannot unpack it"),
    ("--trace nope", f"--trace nope{NO_FILE}"),
    ("--trace nope --trace-format servegen", f"--trace nope{NO_FILE}"),
    ("--trace none.jsonl --trace-format mooncake", "--trace none.jsonl: is empty"),
    ("--prompt-corpus nope", f"--prompt-corpus nope{NO_FILE}"),
    ("--input-dist histogram:nope", "nope"),
    ("--output-dist lognormel:mean=5", "'lognormel' is no distribution, did you mean 'lognormal'?"),
]
PLACES = ("report", "compare", "audit")
LINES = [
    *((f"{verb} {flag} {more}", says) for verb in MEASURED for flag, more, says in MISSING),
    *((f"bench {where} {flags}", says) for where in (HERE, LAUNCHED) for flags, says in UNREAD),
    *((f"data {flags}", says) for flags, says in UNREAD),
    ("data nope", f"--dataset-path nope{NO_FILE}"),
    ("data a.md --export-requests /no/such/x", "a.md row 1"),
    ("bench --save-result --result-dir /dev/null/x", "/dev/null/x"),
    *(
        (f"{verb} RUN {flag}", says)
        for verb in PLACES
        for flag, says in [
            ("nowhere", "nowhere: No such file or directory"),
            ("./nowhere.json", "nowhere.json: No such file or directory"),
            ("--hardware foo", "--hardware foo: unknown"),
            ("--model-config /no/such", "/no/such cannot be read"),
        ]
    ),
    *((f"{verb} nowhere", "nowhere") for verb in (*PLACES, "export --csv", "profiles", "campaign")),
    *((f"{verb} RUN --baseline nonesuch", "--baseline nonesuch: no such row") for verb in PLACES[:2]),
    ("report RUN --html report.html nowhere", "nowhere: No such file or directory"),
    ("report RUN --html /no/such/x.html", "cannot write /no/such/x.html"),
    ("report RUN --csv /no/such/x.csv", "cannot write /no/such/x.csv"),
    ("report RUN --layout none", "--layout none: no such layout"),
    ("compare RUN --headline nonesuch", "nonesuch"),
    ("export RUN --csv --output /no/such/x.csv", "cannot write /no/such/x.csv"),
    ("campaign ./nowhere.toml", "nowhere.toml: No such file"),
    ("campaign demo --only nonesuch", "--only: no checkpoint 'nonesuch'"),
    ("campaign demo --api-key-file /no/such", "--api-key-file '/no/such'"),
    ("campaign demo --api-key-env NO_SUCH_VARIABLE", "--api-key-env NO_SUCH_VARIABLE: it is not set"),
    ("campaign demo --resume nowhere", "nowhere is not a campaign's directory"),
    *(
        (f"campaign {name}.toml", f"checkpoint 'x': {says}")
        for name, says in [
            ("tokenizer", "--tokenizer /no/such: there is no such directory"),
            ("hardware", "--hardware foo: unknown"),
            ("model_config", "/no/such cannot be read"),
        ]
    ),
    ("selftest --transport pigeon", "--transport: invalid choice: 'pigeon'"),
]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_SUCH_VARIABLE", raising=False)
    Path("empty").mkdir()
    Path("a.md").write_text("nothing", "utf-8")
    Path("none.jsonl").touch()
    Path("packed.gz").write_bytes(gzip.compress(b"{}")[:-4])
    Path("RUN").mkdir()
    made_runs.keep(made_runs.run(), Path("RUN"))
    for key, value in (("tokenizer", "/no/such"), ("hardware", "foo"), ("model_config", "/no/such")):
        row = f'[[checkpoints]]\nname = "x"\npreset = "instant"\n{key} = "{value}"\n'
        Path(f"{key}.toml").write_text(f'profiles = ["smoke"]\n{row}', "utf-8")


def files_in(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


@pytest.mark.whole
@pytest.mark.usefixtures("files")
@loop_over(("line", "says"), [row for row in LINES if find_spec("scipy") or row[0][:7] != "compare"])
def test_what_is_not_there_ends_the_command(line: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = files_in(Path())
    assert cli.main(shlex.split(line)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"loadgen: [^\n]+\n", said.err)
    assert says in said.err
    assert files_in(Path()) == before, "nothing is started or left behind"
