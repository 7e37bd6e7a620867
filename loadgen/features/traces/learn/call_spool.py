"""Prompt blocks: prompts as salted hashes of their blocks, and lengths in tokens as far as a log has them.

The hash of a block is BLAKE2b under a key that is the salt, over the hash of the block before it and the
block's own tokens or bytes, cut to 63 bits. Equal hashes are equal prompts up to the end of the block.
Without the salt nothing can be tried against them, and under another salt the same block has an unrelated
hash.
"""

from __future__ import annotations

import math
import os
import struct
import tempfile
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base import parsing
from loadgen.base.arrays import Int64
from loadgen.base.clock import SECOND_NS
from loadgen.features.traces.learn.calls import UNKNOWN, Call, CallEnd, Found, keep_latest
from loadgen.plan.tokenizers import Tokenizer

BLOCK = 16  # tokens: a server's prefix cache keeps no smaller ones
_USUAL_BYTES = 4.0  # of a token of text
_SAMPLED = 1000  # calls by which the bytes of a token are measured
_ID_BYTES = 4
_TEMPLATE_IDS = 8  # tokens that a chat's template may have after a prompt, and not before the next turn
_KEY_BYTES, _HASH_BYTES = 32, 8
_MASK = np.uint64(2**63 - 1)
_NO_BLOCKS = np.zeros(0, np.int64)


class Salt:
    """The key of all hashes of one workload: made of a text, or drawn at random; it is never written."""

    def __init__(self, text: str | None = None) -> None:
        drawn = os.urandom(_KEY_BYTES) if text is None else text.encode()
        key = blake2b(drawn, digest_size=_KEY_BYTES).digest()
        self._keyed = blake2b(digest_size=_HASH_BYTES, key=key)  # a copy takes less time than the key again

    def hash_blocks(self, data: bytes, width: int, count: int) -> Int64:
        """Hash the first `count` blocks of `width` bytes, each with all before it, int64[count]."""
        if not count:  # of all calls of an access log
            return _NO_BLOCKS
        before, hashes, keyed = b"", bytearray(), self._keyed
        for at in range(0, count * width, width):
            (hashed := keyed.copy()).update(before + data[at : at + width])
            before = hashed.digest()
            hashes += before
        return (np.frombuffer(bytes(hashes), "<u8") & _MASK).astype(np.int64)

    def hash_tail(self, before: int, tail: bytes) -> int:
        """Hash the bytes after the last whole block together with that block's hash, to 64 bits."""
        return int.from_bytes(self._hash(before.to_bytes(_HASH_BYTES, "little") + tail), "little")

    def hash_name(self, kind: str, name: str) -> int:
        """Hash an id of one kind to 64 bits, never 0; equal ids of a kind have equal hashes."""
        named = f"{kind}\0{name}".encode("utf-8", "surrogatepass")
        return int.from_bytes(self._hash(named), "little") or 1

    def _hash(self, data: bytes) -> bytes:
        hashed = self._keyed.copy()
        hashed.update(data)
        return hashed.digest()


class Measured(msgspec.Struct, frozen=True):
    """What is kept of a call's prompt and answer: lengths in tokens, and the hashes of whole blocks."""

    input_len: int
    output_len: int  # UNKNOWN: neither its length, its text nor a limit is in the log
    blocks: Int64
    data: bytes = b""  # of the prompt, while it is measured
    width: int = 1  # bytes of a block
    slack: int = 0  # last bytes of a prompt that its next turn may not begin with


class PromptMeter:
    """Measures prompts and answers in tokens, and counts how each length was found."""

    def __init__(
        self, salt: Salt, tokenizer: Tokenizer | None, input_bytes: float, output_bytes: float
    ) -> None:
        self._salt, self._tokenizer = salt, tokenizer
        self._input_bytes, self._output_bytes = input_bytes, output_bytes  # of a token in a body
        self.text_bytes = _USUAL_BYTES  # of a token in a text
        self.prompts, self.answers = Counter[str](), Counter[str]()

    def learn_bytes(self, calls: Iterable[tuple[int, Found]]) -> Iterator[tuple[int, Found]]:
        """Yield all rows; set `text_bytes` by the first 1,000 of them before, if no tokenizer counts."""
        rows = iter(calls)
        first: list[tuple[int, Found]] = []
        size = tokens = 0
        if self._tokenizer is None:
            for row in rows:
                first.append(row)
                call = row[1]
                if isinstance(call, Call) and call.text is not None and call.input_len > 0:
                    size += len(call.text.encode("utf-8", "surrogatepass"))
                    tokens += call.input_len
                if len(first) >= _SAMPLED or size > 64 << 20:
                    break
        if tokens:
            self.text_bytes = max(size / tokens, 1 / BLOCK)
        yield from first
        yield from rows

    def measure(self, call: Call) -> Measured:
        """Measure a call's prompt and answer; `output_len` is UNKNOWN if only its end or limit tells it."""
        input_len, data, width, count = self._measure_prompt(call)
        output_len = UNKNOWN  # where only its end or its limit may tell
        if call.output_len != UNKNOWN:
            output_len = self._note(self.answers, "in the log", call.output_len)
        elif call.answer is not None:
            output_len = self._count_text(self.answers, call.answer)
        elif call.output_bytes != UNKNOWN:
            how = f"estimated, {self._output_bytes:g} bytes of a body a token"
            output_len = self._note(self.answers, how, math.ceil(call.output_bytes / self._output_bytes))
        return Measured(
            min(max(input_len, 1), parsing.MOST_TOKENS),
            output_len,
            self._salt.hash_blocks(data, width, count),
            data,
            width,
            0 if call.text is not None and self._tokenizer is None else _TEMPLATE_IDS * _ID_BYTES,
        )

    def measure_end(self, end: CallEnd, limit: int) -> int:
        """Return the tokens of an answer by what its end says; UNKNOWN if that says nothing."""
        if end.output_len != UNKNOWN:
            return self._note(self.answers, "in the log", end.output_len)
        if end.at_limit and limit != UNKNOWN:
            return self._note(self.answers, "in the log", limit)
        if end.answer is not None:
            return self._count_text(self.answers, end.answer)
        return UNKNOWN

    def _measure_prompt(self, call: Call) -> tuple[int, bytes, int, int]:
        """Return a prompt's tokens, its bytes, those of a block, and how many whole blocks are kept."""
        ids = call.ids
        if ids is None and call.text is not None and self._tokenizer is not None:
            ids = self._tokenizer.encode(call.text, add_special_tokens=False)
        data, width = b"", 1
        if ids is not None:
            data, width, tokens = np.array(ids, np.int64).astype("<i4").tobytes(), BLOCK * _ID_BYTES, len(ids)
            how = "in the log" if call.ids is not None else "by the tokenizer"
        elif call.text is not None:
            data, width = call.text.encode("utf-8", "surrogatepass"), max(1, round(BLOCK * self.text_bytes))
            tokens = math.ceil(len(data) / self.text_bytes)
            how = f"estimated, {self.text_bytes:.3g} bytes of text a token"
        else:
            tokens = math.ceil(max(call.input_bytes, 0) / self._input_bytes)
            how = f"estimated, {self._input_bytes:g} bytes of a body a token"
        if call.input_len != UNKNOWN:
            tokens, how = call.input_len, "in the log"
        self.prompts[how] += 1
        return tokens, data, width, min(len(data) // width, tokens // BLOCK)

    def _count_text(self, counted: Counter[str], text: str) -> int:
        """Return a text's tokens, estimated without a tokenizer, and count the way in `counted`."""
        if self._tokenizer is not None:
            ids = self._tokenizer.encode(text, add_special_tokens=False)
            return self._note(counted, "by the tokenizer", len(ids))
        how = f"estimated, {self.text_bytes:.3g} bytes of text a token"
        size = len(text.encode("utf-8", "surrogatepass"))
        return self._note(counted, how, math.ceil(size / self.text_bytes))

    @staticmethod
    def _note(counted: Counter[str], how: str, length: int) -> int:
        counted[how] += 1
        return length


def describe_counting(counted: Counter[str], total: int) -> str:
    """Describe how lengths were counted: the way if all one, else the count of each; "" if empty."""
    ways: list[Any] = counted.most_common()
    if len(ways) == 1 and ways[0][1] == total:
        return str(ways[0][0])
    return "; ".join(f"{count:,} {how}" for how, count in ways)


PARTS = 64  # of sessions, by the first bits of their hash
_DEEPEST = 4  # agents inside one another
_FIELDS = ("<u8", "<i8", "<i8", "<i8", "<i4", "<i4", "<i4", "<i4", "<i4", "<i8", "<i8")
_PACK = struct.Struct("<Qqqqiiiiiqq").pack
_MOST_OPEN, _MOST_LINKS, _MOST_SAMPLINGS = 1 << 16, 1 << 18, 4096
_LINKED_NS = 3600 * SECOND_NS  # a prompt goes on with one that came within an hour
_MOST_ENDS = 7  # more prompts of one last block
_FLUSHED_BYTES = 1 << 16
NO_ANSWER_LEN = 1  # tokens of an answer of which nothing is known
_LISTED = 4096  # calls of which the fields are listed at once
SpooledCalls = NDArray[np.void]


def open_temporary(stack: ExitStack, directory: Path, count: int) -> list[IO[bytes]]:
    """Open temporary files, which the stack removes; raises OSError."""
    return [stack.enter_context(tempfile.TemporaryFile(dir=directory)) for _ in range(count)]


class KeptCall(NamedTuple):
    """What is kept of a call: the columns of the spool."""

    session: int  # its hash
    begin_ns: int
    end_ns: int  # UNKNOWN: it is not in the log
    order: int  # of the log's rows
    input_len: int
    output_len: int
    cancelled: bool
    sampling: int  # the number of its values; UNKNOWN: none
    agents: int  # the number of the path of those that it belongs to; 0: the main line
    blocks_at: int  # among all hashes
    blocks: int


_RECORD = np.dtype(list(zip(KeptCall._fields, _FIELDS, strict=True)))


class _LastPrompt(msgspec.Struct, frozen=True, gc=False):
    """The last prompt of a session, by which the next one is known."""

    session: int
    begin_ns: int
    tokens: int
    tail_bytes: int  # after the block that it is kept under
    tail: int  # their hash


class CallSpool:
    """Keeps the calls of a log on disk; a context that removes its files. Raises OSError of a full disk."""

    def __init__(self, directory: Path, salt: Salt, meter: PromptMeter) -> None:
        self._salt, self.meter = salt, meter
        self._stack = ExitStack()
        self._files = open_temporary(self._stack, directory, PARTS + 1)
        self._buffers = [bytearray() for _ in range(PARTS)]
        self._open: OrderedDict[str, tuple[KeptCall, int]] = OrderedDict()  # and the longest answer
        self._conversations: OrderedDict[int, int] = OrderedDict()  # sessions
        self._prompts: OrderedDict[int, list[_LastPrompt]] = OrderedDict()  # by their last block
        self.samplings: dict[tuple[tuple[str, float], ...], int] = {}  # numbers of the ways to sample answers
        self.paths: dict[tuple[str, ...], int] = {(): 0}  # numbers of agents, the outermost first
        self.blocks = 0
        self.calls = self.joined = 0
        self.first_ns, self.last_ns = 0, 0
        self.notes: Counter[str] = Counter()

    def __enter__(self) -> CallSpool:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, call: Call) -> None:
        """Keep a call: times, lengths, hashes of prompt and session; a named one stays open for its end."""
        made = self.meter.measure(call)
        self._files[PARTS].write(made.blocks.tobytes())
        self.first_ns = min(self.first_ns, call.begin_ns) if self.calls else call.begin_ns
        self.last_ns = max(self.last_ns, call.begin_ns)
        pairs, sampling = tuple(sorted(call.sampling.items())), UNKNOWN
        if pairs and pairs not in self.samplings and len(self.samplings) == _MOST_SAMPLINGS:
            self.notes[f"sampled in more than {_MOST_SAMPLINGS:,} ways: their parameters are left out"] += 1
        elif pairs:
            sampling = self.samplings.setdefault(pairs, len(self.samplings))
        kept = KeptCall(
            self._assign_session(call, made),
            call.begin_ns,
            call.end_ns,
            self.calls,
            made.input_len,
            made.output_len,
            call.cancelled,
            sampling,
            self.paths.setdefault(call.agents[:_DEEPEST], len(self.paths)),
            self.blocks,
            len(made.blocks),
        )
        self.blocks += len(made.blocks)
        self.calls += 1
        if not call.name:
            self._write(kept, call.output_limit)
            return
        if (earlier := self._open.pop(call.name, None)) is not None:
            self._write(*earlier)
        self._open[call.name] = kept, call.output_limit
        if len(self._open) > _MOST_OPEN:
            self._write(*self._open.popitem(last=False)[1])

    def end(self, end: CallEnd) -> None:
        """Note the end of a call that was added; one that is not known any more is ignored.

        The first of its ends that tells the answer's length counts: vLLM logs token ids before the text.
        """
        names = (end.name, end.name.rpartition("-")[0], f"{end.name}-0")  # vLLM writes it in all these ways
        name = next((found for found in names if found in self._open), None)
        if name is None:
            return
        kept, limit = self._open[name]
        output_len = kept.output_len
        self._open[name] = (
            kept._replace(
                end_ns=max(end.end_ns, kept.begin_ns) if kept.end_ns == UNKNOWN else kept.end_ns,
                cancelled=kept.cancelled or end.cancelled,
                output_len=self.meter.measure_end(end, limit) if output_len == UNKNOWN else output_len,
            ),
            limit,
        )

    def finish(self) -> None:
        """Write the calls that are still open, and all buffers, to disk: after the log's last row."""
        for kept, limit in self._open.values():
            self._write(kept, limit)
        self._open.clear()
        for part in range(PARTS):
            self._flush(part)
        self._files[PARTS].flush()

    def list_sessions(self) -> Iterator[list[KeptCall]]:
        """Yield the calls of each session, sorted by begin, in the order of the sessions' hashes."""
        for part in range(PARTS):
            records = self.read_part(part)
            session: list[KeptCall] = []
            for at in range(0, len(records), _LISTED):
                for call in map(KeptCall._make, records[at : at + _LISTED].tolist()):
                    if session and session[0].session != call.session:
                        yield session
                        session = []
                    session.append(call)
            if session:
                yield session

    def count_sessions(self) -> int:
        """Count the sessions of all calls."""
        return sum(len(np.unique(self.read_part(part)["session"])) for part in range(PARTS))

    def find_last_begin(self) -> int:
        """Return the latest begin of a session, in ns of the log's time; raises ValueError without calls."""
        parts = (self.read_part(part) for part in range(PARTS))
        return max(
            int(found["begin_ns"][np.unique(found["session"], return_index=True)[1]].max())
            for found in parts
            if len(found)
        )

    def read_part(self, part: int) -> SpooledCalls:
        """Read the records of one part, sorted by session, begin and row."""
        self._files[part].seek(0)
        records = np.frombuffer(self._files[part].read(), _RECORD)
        return records[np.lexsort((records["order"], records["begin_ns"], records["session"]))]

    def read_blocks(self, call: KeptCall) -> Int64:
        """Read the hashes of a call's prompt, int64[call.blocks]."""
        if not call.blocks:
            return _NO_BLOCKS
        data = os.pread(self._files[PARTS].fileno(), call.blocks * 8, call.blocks_at * 8)
        return np.frombuffer(data, np.int64)

    def _assign_session(self, call: Call, made: Measured) -> int:
        """Return a call's session, by its id, a prompt that it continues, or new; keep it for later calls."""
        own = self._salt.hash_name("session", call.conversation) if call.conversation else 0
        if own and call.sure:
            return own
        known = self._conversations.get(own, 0) if own else 0
        earlier = 0 if known else self._take_earlier(call, made)
        session = known or earlier or own or self._salt.hash_name("call", str(self.calls))
        self.joined += bool(earlier)
        if own:
            keep_latest(self._conversations, own, session, _MOST_LINKS)
        self._note_prompt(call, made, session)
        return session

    def _take_earlier(self, call: Call, made: Measured) -> int:
        """Find the session whose last prompt is the longest that this one continues; 0: none. Forgets it."""
        for i, block in reversed(list(enumerate(made.blocks.tolist(), 1))):
            for prompt in reversed(self._prompts.get(block, ())):
                end = i * made.width + prompt.tail_bytes
                if (
                    0 <= call.begin_ns - prompt.begin_ns <= _LINKED_NS
                    and made.input_len > prompt.tokens
                    and len(made.data) >= end
                    and self._salt.hash_tail(block, made.data[i * made.width : end]) == prompt.tail
                ):
                    self._prompts[block].remove(prompt)  # one prompt goes on with another once
                    return prompt.session
        return 0

    def _note_prompt(self, call: Call, made: Measured, session: int) -> None:
        """Keep a prompt, without the end that a template gives it, for the one that goes on with it."""
        end = len(made.data) - made.slack
        whole = min(max(end, 0) // made.width, len(made.blocks))
        if not whole:
            return
        block = int(made.blocks[whole - 1])
        tail = made.data[whole * made.width : end]
        last = _LastPrompt(
            session, call.begin_ns, made.input_len, len(tail), self._salt.hash_tail(block, tail)
        )
        prompts = [*self._prompts.get(block, ())[-_MOST_ENDS:], last]
        keep_latest(self._prompts, block, prompts, _MOST_LINKS)

    def _write(self, kept: KeptCall, limit: int) -> None:
        """Write a call that is over, or whose end does not come, to the part of its session."""
        output_len = kept.output_len
        if output_len == UNKNOWN:
            how = "the longest that was asked for" if limit != UNKNOWN else "unknown, sent as 1 token"
            self.meter.answers[how] += 1
            output_len = limit
        kept = kept._replace(output_len=min(max(output_len, NO_ANSWER_LEN), parsing.MOST_TOKENS))
        part = kept.session >> 58
        self._buffers[part] += _PACK(*kept)
        if len(self._buffers[part]) > _FLUSHED_BYTES:
            self._flush(part)

    def _flush(self, part: int) -> None:
        self._files[part].write(self._buffers[part])
        self._files[part].flush()
        self._buffers[part].clear()
