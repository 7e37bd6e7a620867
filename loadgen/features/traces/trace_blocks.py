"""Trace blocks: the content of a trace's hashed blocks, and what a prefix cache gains by them.

A block with the hash `id` is the first tokens of the generator SplitMix64 (Steele, Lea, Flood 2014) that
starts at the state `mix(id + mix(seed + G))`, in arithmetic modulo 2⁶⁴, with G = 0x9E3779B97F4A7C15 and
SplitMix64's finaliser `mix`. Token j of it is `allowed[(x >> 32) × len(allowed) >> 32]` of the generator's
output x = mix(state + (j + 1) × G). So equal hashes are equal tokens and a shared list of leading hashes is
a shared prefix, in every process and on every machine, and a block that is cut is the begin of the whole.
"""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Bool, Int64
from loadgen.base.block_hashes import SERVER_BLOCK, chain_hashes, find_savings, mix_words
from loadgen.base.text import format_count
from loadgen.features.traces.trace_rows import Growth, Hashes, TraceRows
from loadgen.figures.workloads import NO_DELAY, LoadColumns
from loadgen.plan.request_sources import WordCounts

_GOLDEN = 0x9E37_79B9_7F4A_7C15
_WORD = 2**64
_MOST_BLOCKS = 1 << 24  # of prompts without hashes; if they have more, blocks are longer
_TEXT = 1 << 40  # ids of each text that lines share: no prompt has as many blocks


def make_block_places(ids: Int64, seed: int, block: int, count: int) -> Int64:
    """Make the tokens of the blocks with these hashes, as indices below `count`, int64[len(ids) × block].

    `seed` counts modulo 2⁶⁴; `count` is less than 2³².
    """
    start = np.array([(seed + _GOLDEN) % _WORD], np.uint64)
    states = mix_words(ids.astype(np.int64).view(np.uint64) + mix_words(start))
    steps = np.arange(1, block + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    places = mix_words((states[:, None] + steps).ravel())
    places >>= np.uint64(32)
    places *= np.uint64(count)
    places >>= np.uint64(32)
    return places.view(np.int64)


def scope_hashes(ids: Int64, scope: int) -> Int64:
    """Return hashes mixed with a scope's number: equal ones stay equal only within a scope."""
    begin = mix_words(np.array([(scope + _GOLDEN) % _WORD], np.uint64))
    return mix_words(ids.astype(np.int64).view(np.uint64) + begin).view(np.int64)


class BlockContent(msgspec.Struct, frozen=True):
    """The content of a trace's prompts: of hashed blocks, and of tokens that no hash covers.

    Or of prompts that grow: then `block` is 0, and no row has hashes.
    """

    block: int  # tokens that a hash stands for; 0: there are no hashes
    seed: int  # of the hashed blocks
    own_seed: int  # of what a request shares with no other
    allowed: Int64  # token ids
    growth: Growth | None = None

    def digest(self) -> bytes:
        """Return a hash of all that the content depends on."""
        named = f"{self.block} {self.seed} {self.own_seed} ".encode()
        base = hashlib.blake2b(named + self.allowed.astype("<i8").tobytes(), digest_size=16).digest()
        if self.growth is None:
            return base
        columns = (self.growth.origins.astype("<i8").tobytes(), self.growth.kept.astype("<i8").tobytes())
        return hashlib.blake2b(base + b"".join(columns), digest_size=16).digest()

    def spell(self, counts: WordCounts) -> BlockContent:
        """Return the content for prompts of words.

        `allowed` are their indices, and `block` and `growth.kept` count the words that make its tokens.
        """
        words = np.arange(len(counts.choices))
        if self.growth is None:
            return replace(self, block=counts.count_words(self.block), allowed=words)
        tokens = np.maximum(self.growth.kept - counts.overhead, 0)
        kept = np.floor(tokens * (1 / counts.per_word) + 0.5) - 1
        kept = np.maximum(kept, 0).astype(np.int64)
        return replace(self, allowed=words, growth=Growth(self.growth.origins, kept))

    def places(self, ids: Int64, length: int, row: int) -> Int64:
        """Make a row's prompt as indices into `allowed`, int64[length].

        What its hashes do not cover is content of this row alone, as if a last block had the row's number for
        a hash under `own_seed`. Where prompts grow it keeps tokens of its origin, which below 0 is a text
        that lines share. Rows from their number on are the trace again, with tokens of their own.
        """
        count, growth = len(self.allowed), self.growth
        if growth is None:
            needed = -(-length // self.block) if self.block else 0
            places = make_block_places(ids[:needed], self.seed, self.block, count)[:length]
            if len(places) == length:
                return places
            own = make_block_places(np.array([row]), self.own_seed, length - len(places), count)
            return np.concatenate([places, own])
        pieces = []
        while length:
            kept = 0 if row < 0 else min(int(growth.kept[row % len(growth.kept)]), length)
            seed = self.seed if row < 0 else self.own_seed
            if length > kept:
                pieces.append(make_block_places(np.array([row]), seed, length - kept, count))
            length, row = kept, growth.find_origin(row)
        return np.concatenate([*pieces[::-1], np.zeros(0, np.int64)])


class IdTexts:
    """Writes prompts of token ids as JSON, ten times faster than from a list, from cached texts of ids."""

    def __init__(self, allowed: Int64) -> None:
        powers = 10 ** np.arange(len(str(int(allowed.max()))), dtype=np.int64)[::-1]
        digits = (allowed[:, None] // powers % 10 + ord("0")).astype(np.uint8)
        digits[(allowed[:, None] < powers) & (powers > 1)] = ord(" ")
        commas = np.full((len(allowed), 1), ord(","), np.uint8)
        texts = np.ascontiguousarray(np.hstack([digits, commas]))
        self._texts = texts.view(f"V{texts.shape[1]}").ravel()

    def prompt(self, places: Int64) -> msgspec.Raw:
        """Return the JSON of the ids at these indices."""
        return msgspec.Raw(b"[" + self._texts.take(places).tobytes()[:-1] + b"]")


class PrefixReuse(msgspec.Struct, frozen=True):
    """The tokens and prompts that requests share with earlier ones."""

    tokens: Int64  # int64[requests]: that the cache holds of each prompt
    repeated: int  # requests whose whole prompt is that of an earlier one


def find_prefix_reuse(
    hashes: Hashes, begins: Int64, counts: Int64, input_lens: Int64, block: int
) -> PrefixReuse:
    """Compute what an unlimited prefix cache could reuse between requests, in order of sending.

    The cache is empty at the start, has no limit, and contains a prompt as soon as it was sent. It contains
    whole blocks of the server's, 16 tokens, and as vLLM's never serves a prompt's last token: what a
    request reuses is its longest common prefix with an earlier prompt, rounded down to 16 tokens, at most
    length − 1.

    `begins`, `counts` and `input_lens` are int64[requests]; the blocks of request i are `hashes[begins[i] :
    begins[i] + counts[i]]`, each `block` tokens but for the last, which is cut. Tokens that no hash covers
    are shared with no other.

    Prompts with the same first k blocks are found for k = 1, 2, … by sorting a hash of each prompt's first k.
    One that is alone with them is left out from then on, so the work is that of the shared blocks.
    """
    shared = np.zeros(len(input_lens), np.int64)
    depth, repeated = 0, 0
    used = np.minimum(counts, -(-input_lens // max(block, 1)))
    alive = np.flatnonzero(used > 0)  # ascending, so in the order of sending
    chain = np.zeros(len(alive), np.int64)
    while len(alive):
        chain = chain_hashes(chain, hashes[begins[alive] + depth].astype(np.int64))
        order = np.argsort(chain, kind="stable")
        alive, chain = alive[order], chain[order]
        first = np.concatenate([np.ones(1, np.bool_), chain[1:] != chain[:-1]])
        alone = first & np.append(first[1:], True)
        alive, chain, first = alive[~alone], chain[~alone], first[~alone]
        lens = np.minimum(input_lens[alive], (depth + 1) * block)
        shared[alive] = np.maximum(shared[alive], np.minimum(lens, _find_longest_before(lens, first)))
        ends = input_lens[alive] <= (depth + 1) * block
        ended = input_lens[alive[ends]]
        # Those that equal an earlier one in blocks and length.
        repeated += len(ended) - len(np.unique(chain_hashes(chain[ends], ended)))
        depth += 1
        deeper = used[alive] > depth
        alive, chain = alive[deeper], chain[deeper]
        order = np.argsort(alive)
        alive, chain = alive[order], chain[order]
    return PrefixReuse(find_savings(shared, input_lens), repeated)


def find_growth_reuse(
    growth: Growth, places: Int64, input_lens: Int64, rounds: Int64 | None = None
) -> PrefixReuse:
    """Compute what an unlimited prefix cache could reuse between rows sent in the order of `places`.

    As in `find_prefix_reuse`, with a row's longest common prefix with one that was sent before, or with those
    that began with its shared text. Rows of different `rounds`, int64[places], share none; `repeated` is 0.
    """
    kept, rows = growth.kept.tolist(), len(growth.kept)
    held: dict[int, int] = {}  # tokens of each row's prompt, or shared text, that the cache has
    tokens = np.zeros(len(places), np.int64)
    sent = (places if rounds is None else places + rounds * rows).tolist()
    for at, (row, input_len) in enumerate(zip(sent, input_lens.tolist(), strict=True)):
        least, origin = min(kept[row % rows], input_len), growth.find_origin(row)
        while origin not in held and origin >= 0:
            least, origin = min(least, kept[origin % rows]), growth.find_origin(origin)
        tokens[at] = min(least, held.get(origin, 0))
        if origin < 0:
            held[origin] = max(held.get(origin, 0), least)
        held[row] = max(held.get(row, 0), input_len)
    return PrefixReuse(find_savings(tokens, input_lens), 0)


def _find_longest_before(lens: Int64, first: Bool) -> Int64:
    """Find, for each row, the greatest of `lens` before it in its group, which `first` begins; else 0."""
    if not len(lens):
        return lens
    step = int(lens.max()) + 1
    group = np.cumsum(first) * step
    running = np.maximum.accumulate(group + lens)
    before = np.concatenate([np.zeros(1, np.int64), running[:-1]]) - group
    before[first] = 0
    longest: Int64 = np.maximum(before, 0)
    return longest


def make_load_columns(rows: TraceRows, name: str = "") -> LoadColumns:
    """Make the columns of all rows that can be sent, under the file's name if none is given.

    Blocks are unknown without hashes, unless the rows say which earlier prompt each begins with.
    """
    blocks, starts, block = rows.hashes, rows.starts, rows.block
    if rows.growth is not None:
        blocks, starts, block = number_blocks(rows.growth, rows.input_lens, _MOST_BLOCKS)
    known = bool(block and len(blocks))
    pauses_ns = None if rows.delays_ns is None else rows.delays_ns.copy()
    if pauses_ns is not None and rows.waits is not None:
        pauses_ns[np.diff(rows.waits.starts) == 0] = NO_DELAY
    skipped = (f"left out: {format_count(count, 'row')}, {why}" for why, count in rows.skipped.items())
    return LoadColumns(
        name or rows.file,
        rows.input_lens,
        rows.output_lens,
        rows.at_ns,
        blocks if known else None,
        starts if known else None,
        block,
        rows.sessions,
        pauses_ns,
        None if rows.waits is None else rows.waits.depths,
        (*rows.notes, *rows.timed_notes, *skipped),
    )


def number_blocks(growth: Growth, input_lens: Int64, most: int) -> tuple[Int64, Int64, int]:
    """Number the whole blocks of prompts that begin as earlier ones do: ids, each row's begin, block size.

    The size is the server's, 16 tokens, or as many times its double that there are `most` at most.
    """
    block = SERVER_BLOCK
    while int((input_lens // block).sum()) > most:
        block *= 2
    counts, kept = input_lens // block, growth.kept // block
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    ids = np.arange(starts[-1], dtype=np.int64)
    begins = starts.tolist()
    shares = zip(growth.origins.tolist(), np.minimum(kept, counts).tolist(), strict=True)
    for begin, (origin, count) in zip(begins, shares, strict=False):
        first = begins[origin] if origin >= 0 else 0
        ids[begin : begin + count] = (
            ids[first : first + count] if origin >= 0 else origin * _TEXT + np.arange(count)
        )
    return ids, starts, block
