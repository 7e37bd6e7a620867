"""Shard order: what a shard is asked to do, as data, and how it stands."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.base import parsing
from loadgen.base.errors import UsageError
from loadgen.base.text import quote_value
from loadgen.base.urls import check_headers, check_path, check_request_id_prefix
from loadgen.engines.refusals import Adaptation
from loadgen.plan.request_sources import Seed, WordCounts
from loadgen.run.command import keywords
from loadgen.run.command.credentials import NO_KEY
from loadgen.run.command.options import TABLE, Options
from loadgen.run.command.progress import Totals
from loadgen.settings.run_settings import Tolerance
from loadgen.transport.sending.job import Share

MOST_SHARES = 1 << 20
_LEAST_PER_WORD = 0.01  # of tokens: no tokenizer has fewer
_NO_ORDER = "the driver's order is not valid (is it the same loadgen there?)"

# What of the options a shard needs; the driver does the rest itself, or not at all.
SENT = ("more_urls", *(row.name for row in TABLE if row.shard))


class ShardOrder(msgspec.Struct, frozen=True):
    """One part of a plan, and all that its process must know of it.

    It may hold keys: it travels in messages and pipes, and is in no file and on no command line.
    """

    share: Share
    digest: str  # of the only plan that may be sent
    base_url: str
    headers: dict[str, str]
    request_id_prefix: str
    given: dict[str, Any]  # those options in SENT that were given
    max_failures: str  # "": no such rule
    profile: dict[str, Any]
    seed: Seed
    adaptation: Adaptation = Adaptation()  # what of the requests the server refuses
    word_counts: dict[str, WordCounts] = {}

    def pack(self) -> bytes:
        """Return the order as msgpack bytes; infinities stay infinite."""
        return msgspec.msgpack.encode(self)

    def options(self, run_dir: str, totals: str) -> Options:
        """Return the options of the shard's process, with its run below `run_dir` and its counts in `totals`.

        It observes no server, and sends no plan but the one of the order's digest.
        """
        lists = ("metadata", "more_urls")
        values = {**self.given, **{name: tuple(self.given.get(name, ())) for name in lists}}
        return Options(
            base_url=self.base_url,
            headers=self.headers,
            api_key_env=NO_KEY,
            request_id_prefix=self.request_id_prefix,
            max_failures=Tolerance.parse(self.max_failures) if self.max_failures else None,
            run_dir=run_dir,
            seed=self.seed.value,
            quiet=True,
            observe=False,
            live_totals=totals,
            shard=self.share,
            expect_plan=self.digest,
            **values,
        )


class OrderedOptions(keywords.BenchOptions, total=False):
    """The types of the options in an order."""

    more_urls: list[str]
    save_detailed: bool


def unpack_order(data: bytes) -> ShardOrder:
    """Return the order in the bytes of `pack`, all values checked; raises UsageError, in one line."""
    try:
        order = msgspec.msgpack.decode(data, type=ShardOrder)
        _check(order)
        options = keywords.check_keywords(order.given, OrderedOptions, "an order")
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UsageError(f"{_NO_ORDER}: {error}") from None
    return replace(order, given=options)


def _check(order: ShardOrder) -> None:
    """Raise ValueError or UsageError if a value of the order is of the right type, but out of bounds."""
    share, seed = order.share, order.seed
    if not 0 <= share.number < share.of <= MOST_SHARES:
        raise ValueError(f"there is no part {share.number} of {share.of}")
    if not (0 <= seed.value <= parsing.MOST_SEED and 0 <= seed.repeat <= parsing.MOST_SEED):
        raise ValueError("its seed is beyond any")
    if foreign := sorted(order.given.keys() - set(SENT)):
        raise ValueError(f"an order has no option {quote_value(foreign[0])}")
    if order.given.get("workers") == "auto":
        raise ValueError("workers is not a number")
    for counts in order.word_counts.values():
        if not (math.isfinite(counts.overhead) and _LEAST_PER_WORD <= counts.per_word < math.inf):
            raise ValueError("its counts of words are of no tokenizer")
    check_headers(order.headers.items(), "its headers")
    check_request_id_prefix(order.request_id_prefix)
    check_path(str(order.given.get("endpoint") or ""), "its endpoint")
    if order.max_failures:
        Tolerance.parse(order.max_failures)


def pick_options(options: Options) -> dict[str, Any]:
    """Return the options that a shard needs, by name, without those that equal the defaults."""
    default = Options()
    values = {name: getattr(options, name) for name in SENT if hasattr(options, name)}
    return {name: value for name, value in values.items() if value != getattr(default, name)}


def order_share(order: ShardOrder, share: Share) -> ShardOrder:
    """Return the order with another share of the plan."""
    return replace(order, share=share)


class ShardStatus(msgspec.Struct, frozen=True):
    """How a shard stands: what its process has reported, and what it has counted."""

    ready: bool = False
    failed: str = ""  # why it measured nothing
    measured: bool = False  # its last request has ended
    done: bool = False  # its run directory is whole
    rule: str = ""  # that ended it
    ended: str = ""  # how its process ended; "": it runs
    beats: int = 0  # how often it has published its totals
    totals: Totals = Totals()
