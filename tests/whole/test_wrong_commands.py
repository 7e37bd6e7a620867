"""Command lines that cannot be: each is one line on the standard error, exit code 2, nothing is started."""

from __future__ import annotations

import gzip
import os
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from builders import made_runs
from builders.loops import loop_over
from loadgen import cli

BIG = "1" + "0" * 20
DIGITS = "9" * 5000
DEEP = '{"a":' * 3000 + "1" + "}" * 3000
WHOLE = (
    "--num-prompts", "--num-warmups", "--vocab-size", "--random-output-len", "--random-input-len",
    "--random-prefix-len", "--max-concurrency", "--seed", "--port", "--repeat", "--top-k", "--logprobs",
)  # fmt: skip
REAL = (
    "--request-timeout", "--stall-timeout", "--bandwidth", "--ready-check-timeout-sec", "--duration",
    "--temperature", "--top-p",
)  # fmt: skip
LAUNCH_FLAGS = (
    "--context-len", "--tensor-parallel", "--server-seed", "--launch-timeout-sec", "--memory-fraction",
)  # fmt: skip
OWNED = (
    "prompt", "messages", "text", "input_ids", "prompt_embeds", "max_tokens", "max_completion_tokens",
    "max_new_tokens", "stream", "model",
)  # fmt: skip
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
    ("--api-key-file empty", HERE, "--api-key-file 'empty': it is not a regular file"),
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
NAMES = [
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
# Lines of which the message may be any.
LINES = [
    *(f"bench {flag} {value}" for flag in WHOLE for value in (BIG, DIGITS, "-5x", "1e5", "nan", "''")),
    *(f"bench {flag} {value}" for flag in REAL for value in ("1e300x", "nan", "x")),
    *(f"bench {flag} 1e300" for flag in REAL[:5]),
    *(f"bench {flag} -5" for flag in WHOLE if flag != "--seed"),
    *(f"bench {LAUNCHED} --dry-run {flag} {x}" for flag in LAUNCH_FLAGS for x in (BIG, DIGITS, "nan")),
    *(
        f"bench --extra-body '{body}'"
        for body in [
            *(f'{{"{name}": 1}}' for name in OWNED), '{"sampling_params": {"max_new_tokens": 5}}',
            '{"n": 2}', '{"best_of": 2}', '{"use_beam_search": true}', DEEP, f'{{"a": {DIGITS}}}',
            '{"a": 1e400}', '{"a": "\\ud800"}', "[",
        ]
    ),
    f"bench --chat-template-kwargs '{DEEP}'",
    *(
        f"bench --profile {name}.toml"
        for name in (
            "deep", "dotted", "big", "huge", "zero", "latin", "directory", "~nouser/x", "a" * 300,
            "a/" * 3000 + "x",
        )
    ),
    *(
        f"bench --header {value}"
        for value in (
            "Content-Length=5", "content-length=5", "Transfer-Encoding=chunked", "Connection=close",
            "Expect=100-continue", "'A=b\rc'", "é=1",
        )
    ),
    "bench --model-config ~nouser/c.json", "bench --tokenizer \udcff", "bench --label \udcff", "\udcff",
    "compare \udcff", "bench --request-rate 1e-300", "bench --request-rate nan", "bench --burstiness nan",
    "bench --metadata x", "bench --goodput ttft:1e400", "bench --metric-percentiles 1e400",
    "bench --base-url http://h:99999999", "bench --nonsense", "bench --server-args \"'\" --launch vllm",
    "bench --server-env =x --launch vllm", "bench --launch vllm", "ladder --input-len 5",
    "ladder --profile smoke", "ladder --profile ~nouser/x.toml", f"ladder --num-prompts {BIG}",
    "profiles deep.toml", "profiles ~nouser/x.toml",
    *(
        f"campaign {words}"
        for words in (
            "deep.toml", "dotted.toml", "huge.toml", "~nouser/x.toml", "empty.toml", "zeroes.toml",
            "bigseed.toml", f"demo --repeats {BIG}", f"demo --repeats {DIGITS}", "demo --only nobody",
            "demo --retry-failed", "--resume nowhere",
        )
    ),
    *(
        f"compare {words}"
        for words in (
            "~nouser/x", "a" * 300, "a.md --margin 1e300", "a.md --margin nan", "a.md --alpha nan",
            "a.md --bandwidth 1e300", "a.md --model-config ~nouser/c.json",
        )
    ),
    "report ~nouser/x", f"report {'a' * 300}", "report a.md --csv /dev/null/x", "report --layout none a.md",
    "audit ~nouser/x", "audit --bandwidth 1e300 a.md", "audit --model-config ~nouser/c.json a.md", "audit",
    "nonsense", "n" * 5000,
]  # fmt: skip


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
