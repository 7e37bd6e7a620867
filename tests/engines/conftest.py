"""Real engines, each started once, where they are installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from engines import place, running
from engines.running import Engine

REQUIRED = "LOADGEN_REQUIRE_ENGINES"


def _missing(reason: str) -> NoReturn:
    """A skip; a failure where somebody counts on the engines being there."""
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{REQUIRED}=1, but {reason}")
    pytest.skip(reason)


# Engines that live to the end of the session, and their names where a test ends them.
_SHARED = frozenset({"vllm", "caching_vllm", "transformers_serve"})
_DOOMED = frozenset({"doomed_vllm", "doomed_caching_vllm"})
# All that a client may use of a vLLM, with four requests at once and four tokens in a message. A GPU has
# blocks of 16 tokens; a CPU takes multiples of 32, and 128 unless it is asked.
_EVERYTHING = """--block-size 32 --enable-auto-tool-choice --tool-call-parser hermes --max-model-len 8192
    --enable-prompt-tokens-details --enable-per-request-metrics --max-num-seqs 4
    --stream-interval 4"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the tests of the shared engines to the end, and those that end one to the very end.

    The others look for servers left behind, or judge speeds: none may meet an engine that a test before it
    shares. Next to another engine a run reports other processes, and a search finds no limit.
    """
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    fixtures = frozenset(getattr(item, "fixturenames", ()))
    return 2 if fixtures & _DOOMED else 1 if fixtures & _SHARED else 0


@pytest.fixture(scope="session")
def engines_python() -> Path:
    """The Python that the engines are installed for."""
    found = place.engines_python()
    return found if isinstance(found, Path) else _missing(found)


@pytest.fixture(scope="session")
def sglang_python() -> Path:
    """The Python that SGLang is installed for: it wants packages of its own."""
    found = place.sglang_python()
    return found if isinstance(found, Path) else _missing(found)


@pytest.fixture(scope="session")
def llama_server() -> tuple[Path, Path]:
    """llama.cpp's server and its model. It is built by hand, so nobody counts on its being there."""
    found = place.llama_server()
    return pytest.skip(found) if isinstance(found, str) else found


@pytest.fixture(scope="session")
def model(engines_python: Path) -> Path:
    """The tiny model, which holds its tokenizer too."""
    return place.tiny_model(engines_python)


@pytest.fixture(scope="session")
def vllm(engines_python: Path, model: Path) -> Iterator[Engine]:
    """vLLM without a prefix cache: the same prompt is the same work each time."""
    with running.vllm(engines_python, model, ["--no-enable-prefix-caching"]) as engine:
        yield engine


@pytest.fixture(scope="session")
def caching_vllm(engines_python: Path, model: Path) -> Iterator[Engine]:
    """A vLLM whose prefix cache can be emptied, that takes tools and tells each request its times."""
    with running.resettable_vllm(engines_python, model, _EVERYTHING.split()) as engine:
        yield engine


@pytest.fixture
def doomed_vllm(vllm: Engine) -> Engine:
    """The shared vLLM without a prefix cache, for a test that ends it."""
    return vllm


@pytest.fixture
def doomed_caching_vllm(caching_vllm: Engine) -> Engine:
    """The shared vLLM with a prefix cache, for a test that ends it."""
    return caching_vllm


@pytest.fixture(scope="session")
def transformers_serve(engines_python: Path, model: Path) -> Iterator[Engine]:
    """`transformers serve`, pinned to the tiny model."""
    with running.transformers_serve(engines_python, model) as engine:
        yield engine
