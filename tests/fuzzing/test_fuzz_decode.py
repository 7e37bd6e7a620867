"""Whatever a server sends, in whatever reads: a Record, the same for the same bytes, and figures of it."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from builders import recorded
from fuzzing.fuzz_targets_decode import APIS, STATUSES, captured, check, decode_any
from loadgen.records.decode import Decoder
from loadgen.records.record import Record
from records.test_decode import DONE, LAST, USAGE, A

pytestmark = pytest.mark.long

# What depends on how the bytes were cut into reads.
PER_READ = {
    "arrival_ns", "visible_ns", "text_ns", "shared_reads", "shared_lag_ns", "reads", "lag_sum_ns",
    "lag_max_ns", "first_byte_ns", "end_ns", "unstamped_reads", "impossible_stamps",
}  # fmt: skip
NAMES = sorted(
    f"{path.parent.name}/{path.stem}"
    for path in recorded.RESPONSES.glob("*/*.[th]*")
    if path.suffix in (".headers", ".timed")
)
# What turns a healthy answer into an odd one.
ODD = [
    *(b"-1", b"9" * 30, b"9" * 5000, b"1e400", b"2147483647", b"4611686018427387905", b"null", b"[]", b"{}"),
    *(b"[" * 3000, b'{"a":' * 3000, b"\n\n", b"\r", b"\xff\xfe", b"\x00", rb"\ud800", b'""', b"0\r\n\r\n"),
    *(b"data:", b"data: \n\n", b"event: error\n", b"error: no\n\n", b"data: [DONE]\n\n", b"ffffffff\r\n"),
    *(b'"finish_reason":"error"', b'"error":{}', b'"detail":"no"', b'"index":7', b'"token_ids":[1,2]'),
    *(b'"completion_tokens":2000000000', b'"cached_tokens":99', b'"metrics":{"queue_time_ms":1e308}'),
    *(b'"output_tokens":2000000000', b'"cache_read_input_tokens":99', b'"stop_reason":"refusal"'),
    *(b'"type":"error"', b'"type":"message_start"', b'"type":"message"', b'"delta":7', b'"text":5'),
    *(b'"type":"response.completed"', b'"type":"response.failed"', b'"status":"cancelled"', b'"output":[]'),
    b"HTTP/1.1 200 OK\r\n",
]


def raw_of(name: str) -> bytes:
    try:
        return b"".join(recorded.reads(name))
    except FileNotFoundError:
        return b"".join(recorded.timed(name)[1])


RAW = {name: raw_of(name) for name in NAMES}


def kind_of(name: str) -> tuple[int, bool]:
    """Which API, and whether it was streamed."""
    return [*recorded.APIS].index(recorded.api_of(name)), "nostream" not in name


def parts(raw: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    return [raw[a:b] for a, b in itertools.pairwise(edges)]


def said(record: Record) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in Record.__struct_fields__ if name not in PER_READ}
    return {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in values.items()}


def test_there_are_recorded_answers_of_each_api() -> None:
    assert len(NAMES) > 80
    assert {kind_of(name) for name in NAMES} == {
        (api, streamed) for api in range(len(APIS)) for streamed in (True, False)
    }


@given(st.sampled_from(NAMES), st.lists(st.integers(0, 2**20), max_size=60))
def test_an_answer_is_the_same_however_it_is_cut_into_reads(name: str, cuts: list[int]) -> None:
    api, streamed = kind_of(name)
    decoder = Decoder(APIS[api], streamed, keep_text=True)
    one = decoder.decode(captured([RAW[name]], 0))
    cut = check(APIS[api], streamed, captured(parts(RAW[name], cuts), 0))
    assert said(cut) == said(one)
    assert cut.reads == len(parts(RAW[name], cuts))


@pytest.mark.parametrize("name", ["vllm-0.32/completions_stop", "sglang-0.5.23/generate_stream"])
def test_an_answer_is_the_same_in_reads_of_any_one_length(name: str) -> None:
    api, streamed = kind_of(name)
    one = said(Decoder(APIS[api], streamed, keep_text=True).decode(captured([RAW[name]], 0)))
    for length in (1, 2, 3, 5, 7, 16, 64, 255, 1024):
        reads = [RAW[name][at : at + length] for at in range(0, len(RAW[name]), length)]
        assert said(check(APIS[api], streamed, captured(reads, 0))) == one


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, bytes]:
    """A recorded answer with a few spots of it taken out, doubled or replaced."""
    name = draw(st.sampled_from(NAMES))
    raw = RAW[name]
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(raw)))
        end = min(begin + draw(st.sampled_from([0, 0, 1, 2, 7, 40, 400])), len(raw))
        piece = draw(st.one_of(st.sampled_from(ODD), st.binary(max_size=8), st.just(raw[begin:end] * 2)))
        raw = raw[:begin] + piece + raw[end:]
    return name, raw


@given(mutated(), st.booleans(), st.sampled_from(STATUSES), st.lists(st.integers(0, 2**20), max_size=9))
def test_a_spoilt_answer_has_a_record_and_figures(
    answer: tuple[str, bytes], streamed: bool, status: int, cuts: list[int]
) -> None:
    name, raw = answer
    body = raw.partition(b"\r\n\r\n")[2] if status else raw
    check(APIS[kind_of(name)[0]], streamed, captured(parts(body, cuts), status, clock=len(cuts)))


@given(mutated(), st.integers(0, 2), st.booleans())
def test_an_answer_of_another_api_has_a_record_and_figures(
    answer: tuple[str, bytes], api: int, streamed: bool
) -> None:
    check(APIS[api], streamed, captured([answer[1]], 0))


COUNTS = st.sampled_from([-1, 0, 1, 2, 3, 4, 5, 6, 12, 2**31 - 1, 2**31, 2**62 + 1, 10**30, -(10**30), None])
VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(None, False, True, 0, -1, 1.5, 1e308, 10**30, "", "a", "\0\x1b", [], [1], [None], {}, {"a": [{}]}),
        *({"type": "stop"}, {"type": "abort", "message": " "}, {"message": "", "code": 5}, {"code": 10**30}),
    ]
)
USAGES = st.fixed_dictionaries(
    {},
    optional={
        "prompt_tokens": COUNTS,
        "completion_tokens": COUNTS,
        "prompt_tokens_details": st.one_of(st.fixed_dictionaries({"cached_tokens": COUNTS}), VALUES),
    },
)
CHOICES = st.fixed_dictionaries(
    {},
    optional={
        "index": st.integers(0, 2),
        "text": st.sampled_from(["", "a", "\0\x1b"]),
        "delta": st.fixed_dictionaries({"content": st.sampled_from(["", "a"])}),
        "finish_reason": st.sampled_from([None, "", "stop", "error", "x" * 40, "\0"]),
        "token_ids": st.lists(st.integers(0, 9), max_size=3),
    },
)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(CHOICES, max_size=2),
        "usage": USAGES,
        "error": VALUES,
        "message": VALUES,
        "detail": VALUES,
        "metrics": st.fixed_dictionaries({"queue_time_ms": VALUES}),
        "text": st.sampled_from(["", "a", "ab"]),
        "output_ids": VALUES,
        "meta_info": USAGES,
        "index": COUNTS,
    },
)


@given(st.lists(MESSAGES, max_size=6), st.integers(0, 2), st.booleans())
def test_any_messages_have_a_record_and_figures(
    messages: list[dict[str, Any]], api: int, streamed: bool
) -> None:
    datas = [b"data: %b\n\n" % msgspec.json.encode(message) for message in messages]
    body = b"".join((*datas, DONE)) if streamed else b"".join(data[6:] for data in datas[:1])
    check(APIS[api], streamed, captured([body], 200))


@given(st.binary(max_size=400))
@example(b"")
@example(bytes(6) + A + LAST + USAGE + DONE)
@example(bytes([0, 1, 0, 3, 2, 9]) + A + LAST + USAGE + DONE)
@example(bytes([2, 0, 1, 0, 0, 0]) + b'data: {"meta_info":{"completion_tokens":7}}\n\n')
def test_any_bytes_have_a_record_and_figures(data: bytes) -> None:
    decode_any(data)
