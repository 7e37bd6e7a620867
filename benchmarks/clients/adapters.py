"""Clients: this checkout, the floor and the peers, each as the command line that runs one load."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.harness.process import ROOT, Command, CouldNotRun, checkout_env

_RUST_MAIN = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); import _bench; "
    "_bench.run_argv(['sglang-bench', *sys.argv[1:]])"
)
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


@dataclass(frozen=True)
class Load:
    """Requests of equal length, and the server's timing; a closed loop of streams unless a rate is given."""

    name: str
    streams: int
    requests: int
    output_tokens: int
    interval_ms: float
    ttft_ms: float
    input_tokens: int = 64
    busy_core: bool = False  # next to it, a loop that never rests on one of the cores
    nagle: bool = False  # the server leaves Nagle's algorithm on
    requests_per_s: float | None = None  # evenly spaced: the floor alone has such a load

    @property
    def words(self) -> str:
        pace = f"one token per {self.interval_ms:g} ms" if self.interval_ms else "without pacing"
        streams = f"{self.streams} streams" if self.streams > 1 else "one stream"
        sizes = f"{self.requests} requests of {self.input_tokens} in / {self.output_tokens} out"
        loop = ", a busy loop on one core" if self.busy_core else ""
        nagle = ", Nagle's algorithm on" if self.nagle else ""
        return f"{streams}, {pace}, {sizes}{loop}{nagle}"


@dataclass(frozen=True)
class Reported:
    """A client's figures of the server."""

    mean_ttft_ms: float
    p99_itl_ms: float
    late_bodies: int = 0
    verdict: str = ""  # its own on these figures; "": it has none


class Client(Protocol):
    """Sends a load; `reported` reads the result from its output directory."""

    @property
    def name(self) -> str: ...

    def command(self, load: Load, base_url: str, out: Path) -> Command: ...

    def reported(self, out: Path) -> Reported | None: ...


@dataclass(frozen=True)
class Floor:
    """The C loop that reads the same streams and discards the bytes; it reports nothing."""

    binary: Path
    name: str = "floor"

    def command(self, load: Load, base_url: str, out: Path) -> Command:
        port = base_url.rpartition(":")[2]
        words = [load.streams, load.requests, load.input_tokens, load.output_tokens]
        rate = [] if load.requests_per_s is None else [load.requests_per_s]
        return Command([str(self.binary), port, *map(str, [*words, *rate])], {})

    def reported(self, out: Path) -> Reported | None:
        return None


@dataclass(frozen=True)
class Ours:
    """This checkout."""

    name: str = "loadgen"
    transport: str = "auto"
    more: tuple[str, ...] = ()  # flags

    def command(self, load: Load, base_url: str, out: Path) -> Command:
        argv = [sys.executable, "-m", "loadgen", "bench", "--base-url", base_url, "--model", "null"]
        argv += [*_random(load), "--quiet", "--run-dir", str(out), "--transport", self.transport]
        return Command([*argv, *self.more], checkout_env())

    def reported(self, out: Path) -> Reported | None:
        result = _read(next(out.glob("*/result.json"), out / "result.json"))
        own = result["loadgen"]
        late, verdict = int(own["client"]["late_bodies"]), own["verdict"]["level"]
        return Reported(result["mean_ttft_ms"], result["p99_itl_ms"], late, verdict)


class Peer:
    """A client that writes vLLM's keys to result.json."""

    def reported(self, out: Path) -> Reported | None:
        result = _read(out / "result.json")
        return Reported(result["mean_ttft_ms"], result["p99_itl_ms"])


@dataclass(frozen=True)
class Rust(Peer):
    """SGLang's Rust client: its extension, loaded by the Python it was built for."""

    name: str
    extension: Path
    python: str
    arguments: tuple[str, ...]  # where prompts come from

    def command(self, load: Load, base_url: str, out: Path) -> Command:
        argv = [self.python, "-c", _RUST_MAIN, str(self.extension)]
        argv += ["--backend", "vllm", "--base-url", base_url, "--model", "null", *self.arguments]
        argv += ["--dataset-name", "random-ids", "--random-range-ratio", "1.0", "--warmup-requests", "0"]
        argv += ["--random-input-len", str(load.input_tokens), "--random-output-len", str(load.output_tokens)]
        argv += ["--num-prompts", str(load.requests), "--max-concurrency", str(load.streams)]
        argv += ["--disable-tqdm", "--output-file", str(out / "result.json")]
        return Command(argv, _OFFLINE)


@dataclass(frozen=True)
class Vllm(Peer):
    """`vllm bench serve`."""

    name: str
    binary: str
    tokenizer: Path

    def command(self, load: Load, base_url: str, out: Path) -> Command:
        argv = [self.binary, "bench", "serve", "--backend", "openai", "--base-url", base_url]
        argv += ["--model", "null", "--tokenizer", str(self.tokenizer), "--dataset-name", "random"]
        argv += [*_random(load), "--ignore-eos", "--disable-tqdm", "--ready-check-timeout-sec", "0"]
        argv += ["--save-result", "--result-dir", str(out), "--result-filename", "result.json"]
        return Command(argv, _OFFLINE)


@dataclass(frozen=True)
class Installed:
    """The clients on this machine; `missing` is why others are not."""

    ours: Ours
    portable: Ours
    wire: Ours
    ring: Ours
    floor: Floor | None = None
    slow_moments: Path | None = None  # the program that finds them
    rust: tuple[Rust, ...] = ()  # the first as its users run it: the bars compare with this one
    vllm: Vllm | None = None
    missing: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Paths:
    """Where the peers are, from flags or the environment; empty if not given."""

    rust_extension: str
    rust_python: str
    rust_version: str
    vllm: str
    tokenizer: str


def find(paths: Paths, scratch: Path) -> Installed:
    """The clients that can run here; the floor is compiled and a tokenizer created in `scratch`."""
    missing = []
    floor, slow_moments = _compile("floor", scratch), _compile("slow_moments", scratch)
    if floor is None:
        missing.append("floor: no C compiler (`cc`), or it failed")
    vllm_python = Path(paths.vllm).with_name("python") if paths.vllm else None
    tokenizer = _tokenizer(paths, vllm_python, scratch)
    rust = _rust(paths, tokenizer)
    if not rust:
        missing.append("SGLang's Rust client: not given (--rust-extension and --rust-python)")
    elif len(rust) == 1:
        missing.append("SGLang's Rust client with a tokenizer: none given, and no `tokenizers` to make one")
    vllm = None
    if vllm_python is not None and tokenizer is not None:
        vllm = Vllm(f"vllm bench serve {_version(vllm_python)}".strip(), paths.vllm, tokenizer)
    else:
        missing.append("`vllm bench serve`: not given (--vllm), or no tokenizer for it (--tokenizer)")
    return Installed(
        ours=Ours(),
        portable=Ours("loadgen --transport httpx", "httpx"),
        wire=Ours("loadgen --transport wire", "wire"),
        ring=Ours("loadgen --transport ring", "ring"),
        floor=Floor(floor) if floor is not None else None,
        slow_moments=slow_moments,
        rust=rust,
        vllm=vllm,
        missing=tuple(missing),
    )


def _rust(paths: Paths, tokenizer: Path | None) -> tuple[Rust, ...]:
    if not (paths.rust_extension and paths.rust_python):
        return ()
    name = f"SGLang Rust client {paths.rust_version}".strip()
    extension = Path(paths.rust_extension)
    bare = Rust(f"{name}, ids", extension, paths.rust_python, ("--tokenize-prompt", "--vocab-size", "6000"))
    if tokenizer is None:
        return (bare,)
    given = ("--tokenizer", str(tokenizer))
    return (Rust(f"{name}, tokenizer", extension, paths.rust_python, given), bare)


def _random(load: Load) -> list[str]:
    flags = {
        "--random-input-len": load.input_tokens,
        "--random-output-len": load.output_tokens,
        "--num-prompts": load.requests,
        "--max-concurrency": load.streams,
    }
    return [word for flag, value in flags.items() for word in (flag, str(value))]


def _read(path: Path) -> dict[str, Any]:
    """A client's JSON result, or the last line of one that appends."""
    try:
        text = path.read_text("utf-8").strip()
    except OSError:
        raise CouldNotRun("the client wrote no result") from None
    try:
        result = json.loads(text)
    except ValueError:
        result = json.loads(text.splitlines()[-1])
    assert isinstance(result, dict)
    return result


def _compile(name: str, scratch: Path) -> Path | None:
    source, binary = Path(__file__).with_name(f"{name}.c"), scratch / name
    try:
        subprocess.run(["cc", "-O2", "-o", str(binary), str(source)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return binary


def _tokenizer(paths: Paths, vllm_python: Path | None, scratch: Path) -> Path | None:
    """The directory that was given, or a small tokenizer made by a Python that has `tokenizers`."""
    if paths.tokenizer:
        return Path(paths.tokenizer)
    tests, made = ROOT / "tests", scratch / "tokenizer"
    make = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); "
        "from builders.tiny_tokenizer import make_tokenizer; make_tokenizer(Path(sys.argv[2]))"
    )
    for python in (sys.executable, vllm_python):
        if python is None:
            continue
        argv = [str(python), "-c", make, str(tests), str(made)]
        try:
            subprocess.run(argv, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return made
    return None


def _version(python: Path) -> str:
    code = "import importlib.metadata as m; print(m.version('vllm'))"
    try:
        done = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
