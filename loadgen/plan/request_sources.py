"""Request sources: the inputs and results of what makes a plan's requests, the sources, and their files.

A source gets `PlanInputs` (profile, model, seed, API) and returns `SourcedRequests`.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Int64
from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path
from loadgen.base.json_lines import OpenedFile
from loadgen.engines.engine import Engine
from loadgen.plan import lengths
from loadgen.plan.planned_requests import Cancellations, DataFacts, Requests, Turns
from loadgen.plan.profile import Profile, list_shipped, read_toml
from loadgen.settings.data_settings import FILE, RANDOM, SOURCES
from loadgen.wire.openai import Dialect

SEED_BITS = 32
WORDS = "words"  # the form of prompts that are sized by the server's own count
# The first word has no blank before it, and so may be more tokens than elsewhere: it is always the same.
FIRST_WORD = "the"
_WORDS_FILE = Path(__file__).with_name("common_words.txt")
TRACES = tuple(name for name, source in SOURCES.items() if source.is_trace)
# A file has lengths and times at most.
MADE = tuple(name for name, source in SOURCES.items() if source.is_made)
_DISTS = ("input", "output")
Purpose = Literal["measure", "warmup", "when"]


class RandomStream(msgspec.Struct, frozen=True):
    """The name of one independent stream of random numbers.

    Two streams that differ in any field have nothing in common, so a repeat, another profile, another
    attempt at the same run or the warm-up never meets prompts that the server has in its prefix cache. The
    same name gives the same numbers in every process: the key is a hash of the fields (blake2b, not
    Python's salted `hash`).
    """

    seed: int
    profile: str = ""
    repeat: int = 0
    purpose: Purpose = "measure"
    attempt: int = 0

    def rng(self, part: str, index: int = 0) -> np.random.Generator:
        """Make a fresh generator for one part of this stream and its piece `index`, at its start."""
        return np.random.default_rng(np.random.SeedSequence(self.key(part), spawn_key=(index,)))

    def key(self, part: str) -> int:
        """Return the 128-bit key of one part of this stream."""
        # The first attempt is not in the name, so that its numbers are those of a run without attempts.
        again = [self.attempt] if self.attempt else []
        name = msgspec.json.encode([str(self.seed), self.profile, self.repeat, self.purpose, part, *again])
        return int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "little")


def make_arrival_rng(stream: RandomStream) -> np.random.Generator:
    """Make the generator of arrival times, independent of the one of content."""
    return replace(stream, purpose="when").rng("gaps")


class Seed(msgspec.Struct, frozen=True):
    """The seed of a plan's random numbers, with the run's repeat and attempt; `chosen` by the user, or drawn.

    `attempt` counts the times that this run of a series was begun before: what an earlier attempt sent may be
    in the server's cache, so that another one sends other prompts. `apart` names who else sends the same
    prompts to this server, as an arm of a campaign; "": no one.
    """

    value: int
    chosen: bool = False
    repeat: int = 0
    attempt: int = 0
    apart: str = ""

    @property
    def first(self) -> bool:
        """Whether no run with this seed was sent before."""
        return not (self.repeat or self.attempt)

    def make_salt(self, profile: str) -> str:
        """Make a run's value of the field that parts a prefix cache: another in each run, as the prompts."""
        stream = RandomStream(self.value, profile, self.repeat, attempt=self.attempt)
        return f"loadgen-{stream.key(f'cache {self.apart}'):032x}"

    @classmethod
    def draw(cls) -> Seed:
        """Draw a random seed, so that no two runs share prompts by accident."""
        return cls(secrets.randbits(SEED_BITS))


@cache
def list_common_words() -> tuple[str, ...]:
    """Return the 512 commonest lower-case words of three English texts, the commonest first."""
    return tuple(_WORDS_FILE.read_text("utf-8").split())


class WordCounts(msgspec.Struct, frozen=True):
    """How a server counts prompts made of words: tokens per word, and per prompt on top."""

    words: tuple[str, ...] = ()  # those that prompts are made of; (): all common ones
    overhead: float = 0.0  # tokens of a prompt without any word: the chat template's
    per_word: float = 1.0
    how: str = ""  # the count was learned; "": one token a word is assumed

    @property
    def choices(self) -> tuple[str, ...]:
        """Return the words that prompts are made of."""
        return self.words or list_common_words()

    @property
    def explanation(self) -> str:
        """How the count was learned, in words."""
        return self.how or "one token a word is assumed: the server was not asked"

    def tokens(self, words: int) -> float:
        """Return the tokens of a prompt of `words` words."""
        return self.overhead + self.per_word * words

    def count_words(self, tokens: float) -> int:
        """Return the nearest number of words to `tokens` tokens, which exclude the overhead per prompt."""
        return math.floor(round(tokens / self.per_word, 6) + 0.5)


class ModelTarget(msgspec.Struct, frozen=True):
    """The facts that a plan needs of the server's model and of the user's tokenizer."""

    engine: Engine
    model: str  # the name that requests carry
    model_root: str = ""  # where the server's model lies, if it reports it
    tokenizer: str | None = None
    vocab_size: int | None = None
    endpoint: str | None = None  # None: the dialect's own path
    prefix: str = "/v1"  # of that path, in place of its own
    query: str = ""  # after it, or after the endpoint
    word_counts: WordCounts | None = None  # where prompts are made of words and the server was asked
    placeholder: bool = False  # `model` is a word for one: no server is asked, and none was named

    def takes_ids(self, dialect: Dialect) -> bool:
        """Whether prompts may be sent as token ids in this API of the engine."""
        return self.engine.takes_ids and not dialect.chat

    def name_text_api(self, dialect: Dialect) -> str:
        """Name the API, or the engine, that takes text and not token ids, for a message."""
        return "the chat API" if dialect.chat else self.engine.name

    @property
    def no_tokenizer(self) -> str:
        """The message that no tokenizer of the model was found."""
        return "none is given" if self.placeholder else f"none of {self.model} is on this machine"


class PlanInputs(msgspec.Struct, frozen=True):
    """The inputs of a source of requests: profile, model, API, seed, and the most requests."""

    profile: Profile
    subject: ModelTarget
    seed: Seed
    stream: RandomStream
    dialect: Dialect
    most: int | None  # requests that are wanted at most; None: all that a file holds

    @property
    def shared_seed(self) -> int:
        """The seed for random generators that reproduce another client's.

        A seed that the user chose goes to it as it is; a drawn one is mixed with profile and repeat, as for
        ids.
        """
        own = self.seed.chosen and self.seed.first and self.stream.purpose == "measure"
        return self.seed.value if own else self.stream.key("text") % 2**SEED_BITS


def count_sessions(turns: Turns, profile: Profile, most: int | None) -> int:
    """Count the sessions to send: --num-sessions, else those of a file, or as many as have `most` requests.

    At most those of the file with --no-oversample.
    """
    held = len(turns)
    sessions = profile.num_sessions or max(held, -(-(most or 0) // int(turns.begins[-1])) * held)
    return min(sessions, held) if profile.no_oversample else sessions


class SourcedRequests(msgspec.Struct, frozen=True):
    """The requests that a source makes, with facts and notes to report.

    The plan fills in the lengths' statistics of `facts`.
    """

    requests: Requests
    facts: DataFacts
    offsets_ns: Int64 | None = None  # the source's own schedule: after the start, never decreasing
    ids_source: str = ""  # where token ids are drawn from; "" for text
    tokenizer: str = ""  # that made the texts, where none was named
    sessions: Int64 | None = None  # of each request: those of one stay in one shard; None: none, or `turns`
    turns: Turns | None = None  # where the requests of a session are sent one after another
    cancellations: Cancellations | None = None  # that the source recorded
    notes: tuple[str, ...] = ()  # what was requested and cannot be, in words


def find_source(profile: Profile) -> str:
    """Find the source, a key of SOURCES, whose own key a profile has set; else random.

    A `dataset_name` that is a source takes the place of random and of a plain file.
    """
    keyed = (name for name, source in SOURCES.items() if source.key and getattr(profile, source.key))
    found = next(keyed, RANDOM)
    named = profile.dataset_name
    return named if named in SOURCES and found in (RANDOM, FILE) else found


def check_files(profile: Profile) -> None:
    """Raise UsageError, naming the flag, if a file is missing, empty, compressed or not a file.

    What is in the rows is read with the plan. Distributions of lengths and pauses are parsed here.
    """
    if profile.trace and not expand_path(profile.trace).is_dir():
        _open_file(profile.trace, "--trace")
    if profile.dataset_path and SOURCES[find_source(profile)].reads_file:
        path = profile.dataset_path
        own = list_shipped().get(profile.name)
        if own is not None and not expand_path(path).exists() and read_toml(own).get("dataset_path") == path:
            raise UsageError(
                f"--profile {profile.name} reads {path}, which is not in this directory: pass --dataset-path "
                f"FILE (`loadgen profiles {profile.name}` says where it is from)"
            )
        _open_file(profile.dataset_path, "--dataset-path")
    if profile.prompt_corpus:
        _open_file(profile.prompt_corpus, "--prompt-corpus")
    dists = {way: (getattr(profile, f"{way}_dist"), getattr(profile, f"{way}_len")) for way in _DISTS}
    for way, (text, usual) in dists.items():
        if text:
            lengths.parse_lengths(text, f"--{way}-dist", usual)
    if profile.think_time:
        lengths.parse_pauses_ms(profile.think_time, "--think-time")


def _open_file(path: str, flag: str) -> OpenedFile:

    return OpenedFile(path, flag)
