"""Place: where the engines and the tiny model are."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

from engines.running import OFFLINE

_HERE = Path(__file__).resolve().parent
DIRECTORY = _HERE.parents[1] / ".engines"  # git ignores it
PYTHON = "LOADGEN_ENGINES_PYTHON"
SGLANG_PYTHON = "LOADGEN_SGLANG_PYTHON"
LLAMA_SERVER = "LOADGEN_LLAMA_SERVER"
TINY_GGUF = "LOADGEN_TINY_GGUF"


def engines_python() -> Path | str:
    """The Python that the engines are installed for, or why there is none."""
    named = os.environ.get(PYTHON)
    python = Path(named) if named else DIRECTORY / "venv" / "bin" / "python"
    if not python.with_name("vllm").is_file():
        hint = f"{PYTHON} would name another place" if named is None else f"{PYTHON} says so"
        return f"no vllm beside {python} ({hint}): tests/engines/install.sh installs it"
    return python


def sglang_python() -> Path | str:
    """The Python that SGLang is installed for, or why there is none."""
    named = os.environ.get(SGLANG_PYTHON)
    python = Path(named) if named else DIRECTORY / "sglang" / "bin" / "python"
    if not any(python.parent.parent.glob("lib/python*/site-packages/sglang")):
        hint = f"{SGLANG_PYTHON} would name another place" if named is None else f"{SGLANG_PYTHON} says so"
        return f"no sglang installed for {python} ({hint}): tests/engines/install_sglang.sh installs it"
    return python


def llama_server() -> tuple[Path, Path] | str:
    """llama.cpp's server and the tiny model for it, or why they are not there."""
    directory = DIRECTORY / "llamacpp"
    server = Path(os.environ.get(LLAMA_SERVER, directory / "llama-server"))
    model = Path(os.environ.get(TINY_GGUF, directory / "tiny.gguf"))
    if missing := next((path for path in (server, model) if not path.is_file()), None):
        return (
            f"there is no {missing} ({LLAMA_SERVER} and {TINY_GGUF} would name other places): "
            "tests/engines/install_llamacpp.sh builds them"
        )
    return server, model


def tiny_model(python: Path, layers: int = 2) -> Path:
    """The directory of the tiny model with so many layers, made once."""
    name = "tiny-qwen3" if layers == 2 else f"tiny-qwen3-{layers}-layers"
    return _make_once(python, DIRECTORY / name, "tiny_model.py", str(layers))


def tiny_vlm(python: Path) -> Path:
    """The directory of the tiny vision model, made once."""
    return _make_once(python, DIRECTORY / "tiny-idefics3", "tiny_vlm.py")


def _make_once(python: Path, model: Path, script: str, *words: str) -> Path:
    """The directory of a model, which a script makes unless it is there."""
    DIRECTORY.mkdir(exist_ok=True)
    with (DIRECTORY / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two processes run the tests
        if not (model / "config.json").is_file():
            argv = [str(python), str(_HERE / script), str(model), *words]
            subprocess.run(argv, check=True, env={**os.environ, **OFFLINE})
    return model
