"""A campaign on servers whose distributions are known measures their divergence, also after a kill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from builders.campaign_files import contents, the_directory, written
from builders.made_qualities import read_qualities
from builders.markov_chain import MarkovModel, disturb, make_chain, normalize
from fakes.markov_server import MarkovServer
from fakes.scripted_server import Answer, Asked, ScriptedServer, stream
from loadgen import cli
from loadgen.study.quality.quality_record import BACKWARD, FORWARD, Quality
from loadgen.study.quality.reference_file import read_reference

pytestmark = [pytest.mark.whole, pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]
TOKENS, KL = 2000, 0.05
_PROBE = 8  # tokens at most, of what is scored to find out what a server reports
REFERENCE = make_chain()


class LoadedServer:
    """A Markov server that streams where it is asked to, and holds back what `held` says."""

    def __init__(
        self, model: MarkovModel, name: str, held: Callable[[dict[str, Any]], object] = bool, **keys: Any
    ):
        self.markov, self.held = MarkovServer(model, name, **keys), held

    def __call__(self, asked: Asked) -> Answer:
        body = msgspec.json.decode(asked.body) if asked.body else {}
        if body.get("stream"):
            return stream(3)
        self.held(body)
        return self.markov(asked)

    @property
    def scored(self) -> Counter[tuple[int, ...]]:
        """How often each sequence was scored."""
        bodies = [body for body in self.markov.posted if "prompt_logprobs" in body]
        prompts = [tuple(prompt) for body in bodies for prompt in body["prompt"]]
        return Counter(prompt for prompt in prompts if len(prompt) > _PROBE)

    @property
    def sampled(self) -> int:
        """How many prompts were sent to be continued."""
        return sum(len(body["prompt"]) for body in self.markov.posted if body.get("logprobs") is not None)


@contextmanager
def serving(
    a: LoadedServer, b: LoadedServer, directory: Path, tokens: int = TOKENS, **keys: Any
) -> Iterator[Path]:
    """Both on ports of their own, and a campaign's file that compares them."""
    with ScriptedServer(a) as one, ScriptedServer(b) as two:
        quality = {"reference": "a", "tokens": tokens, "margin": 0.01, **keys}
        tables = ({"name": "a", "base_url": one.base_url}, {"name": "b", "base_url": two.base_url})
        yield written(directory, *tables, repeats=1, quality=quality)


def measure(b: LoadedServer, directory: Path, **keys: Any) -> Quality:
    """The quality of b in a campaign, which goes on with nothing left to do, and is verified."""
    with serving(LoadedServer(REFERENCE, "a"), b, directory, **keys) as file:
        assert cli.main(["campaign", str(file)]) == 0
        before = contents(the_directory() / "quality")
        assert cli.main(["campaign", str(file), "--resume"]) == 0
    assert contents(the_directory() / "quality") == before
    assert cli.main(["verify", str(the_directory())]) == 0
    return read_qualities(the_directory())["b on attached"]


def test_the_divergence_of_a_known_candidate_is_in_its_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    b = LoadedServer(disturb(REFERENCE, KL), "b")
    found = measure(b, tmp_path)
    out = capsys.readouterr().out
    assert "quality, a on attached: 2,000 tokens sampled; noise floor 0.0000 ±0.0000 nats a token" in out
    assert "different by more than 0.01 nats a token" in out
    assert "\nQuality, against the reference\n" in out
    assert found.kl is not None
    assert found.agreement is not None
    assert found.kl.low < KL < found.kl.high
    assert (found.kl.direction, found.doubts, found.why) == (FORWARD, (), {})
    assert set(b.scored.values()) == {1}


def test_a_candidate_that_scores_nothing_is_scored_by_the_reference(tmp_path: Path) -> None:
    found = measure(LoadedServer(disturb(REFERENCE, KL), "b", prompt_logprobs=False), tmp_path)
    assert found.kl is not None
    assert found.kl.direction == BACKWARD
    assert found.kl.low < KL * 1.5
    assert found.why["agreement"] == "vLLM (b) scores no text"
    assert found.bits_per_byte is None


def test_greedy_answers_are_compared_where_they_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = measure(LoadedServer(disturb(REFERENCE, KL), "b"), tmp_path, greedy=True)
    assert found.same_answers is not None
    assert found.agreement is not None
    assert 0 < found.same_answers.mean < found.agreement.mean < 1
    assert "b: 125 greedy responses of 16 tokens at most" in capsys.readouterr().out


def test_other_vocabularies_have_bits_per_byte_and_no_kl(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    smaller = MarkovModel(normalize(np.random.default_rng(3).normal(size=(48, 48))))
    found = measure(LoadedServer(smaller, "b"), tmp_path)
    assert (found.kl, found.agreement, found.perplexity_ratio) == (None, None, None)
    assert found.bits_per_byte is not None
    assert "quality, b on attached: no KL: the vocabularies differ" in capsys.readouterr().out


def end_at(directory: Path, file: Path, reached: threading.Event, number: signal.Signals) -> int:
    """Start the campaign in a process of its own, send it a signal once the event is set; its exit code."""
    command = [sys.executable, "-m", "loadgen", "campaign", str(file), "--quiet"]
    process = subprocess.Popen(command, cwd=directory)
    try:
        assert reached.wait(30)
        process.send_signal(number)
        return process.wait(20)
    finally:
        process.kill()
        process.wait(10)


@pytest.mark.parametrize(
    ("side", "number"),
    [("a", signal.SIGKILL), ("b", signal.SIGKILL), ("a", signal.SIGINT), ("b", signal.SIGTERM)],
)
def test_an_end_costs_the_requests_in_flight_alone(tmp_path: Path, side: str, number: signal.Signals) -> None:
    reached, seen = threading.Event(), list[int]()

    def hold(body: dict[str, Any]) -> None:
        """Hold back the sixth request of scores of answers: two of those before were answered."""
        if "prompt_logprobs" in body and 1 < max(map(len, body["prompt"])) <= 112:
            seen.append(len(body["prompt"]))
        if len(seen) == 6 and not reached.is_set():
            reached.set()
            time.sleep(1)

    def make(name: str, model: MarkovModel) -> LoadedServer:
        return LoadedServer(model, name, hold) if name == side else LoadedServer(model, name)

    a, b = make("a", REFERENCE), make("b", disturb(REFERENCE, KL))
    with serving(a, b, tmp_path, tokens=8000) as file:
        code = end_at(tmp_path, file, reached, number)
        assert code == (-number if number == signal.SIGKILL else 128 + number)
        place = the_directory()
        kept = read_reference(
            place / "quality" / ("reference.jsonl.gz" if side == "a" else "b-attached.jsonl.gz")
        )
        assert kept.segments
        assert kept.answers
        before = a.sampled
        assert cli.main(["campaign", str(file), "--resume"]) == 0
    whole = read_reference(place / "quality" / "reference.jsonl.gz")
    answers = [line.answer for line in whole.answers]
    assert len(answers) == len(set(answers))
    assert sum(len(answer.token_ids) for answer in answers) < 8000 + 64
    found = read_qualities(place)["b on attached"]
    assert found.kl is not None
    assert found.kl.tokens == sum(len(answer.token_ids) for answer in answers)
    assert cli.main(["verify", str(place)]) == 0
    assert len(json.loads((place / "quality" / "tasks.json").read_text("utf-8"))) == 2
    if side == "b":
        assert a.sampled == before  # the reference had sampled
        assert sum(count - 1 for count in b.scored.values()) <= 64  # in four requests of sixteen
