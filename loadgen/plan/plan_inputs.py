"""Plan inputs: what a plan is made from: profile, model, seed, and how the server takes requests."""

from __future__ import annotations

import math
import secrets
from functools import cache
from pathlib import Path

import msgspec

from loadgen.base.arrays import Int64
from loadgen.engines.engine import Engine
from loadgen.plan.data_facts import DataFacts
from loadgen.plan.planned_requests import Requests, Turns
from loadgen.plan.profile import Profile
from loadgen.plan.random_stream import RandomStream
from loadgen.wire.openai import Chat, Dialect

SEED_BITS = 32
WORDS = "words"  # the form of prompts that are sized by the server's own count
# The first word has no blank before it, and so may be more tokens than elsewhere: it is always the same.
FIRST_WORD = "the"
_WORDS_FILE = Path(__file__).with_name("common_words.txt")


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

    def words_of(self, tokens: float) -> int:
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
        return self.engine.takes_ids and not isinstance(dialect, Chat)

    def name_text_api(self, dialect: Dialect) -> str:
        """Name the API, or the engine, that takes text and not token ids, for a message."""
        return "the chat API" if isinstance(dialect, Chat) else self.engine.name

    @property
    def no_tokenizer(self) -> str:
        """The message that no tokenizer of the model was found."""
        return "none is given" if self.placeholder else f"none of {self.model} is on this machine"


class Seed(msgspec.Struct, frozen=True):
    """The seed of a plan's random numbers, with the run's repeat and attempt; `chosen` by the user, or drawn.

    `attempt` counts the times that this run of a series was begun before: what an earlier attempt sent may be
    in the server's cache, so that another one sends other prompts.
    """

    value: int
    chosen: bool = False
    repeat: int = 0
    attempt: int = 0

    @property
    def first(self) -> bool:
        """Whether no run with this seed was sent before."""
        return not (self.repeat or self.attempt)

    @classmethod
    def draw(cls) -> Seed:
        """Draw a random seed, so that no two runs share prompts by accident."""
        return cls(secrets.randbits(SEED_BITS))


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
    notes: tuple[str, ...] = ()  # what was requested and cannot be, in words
