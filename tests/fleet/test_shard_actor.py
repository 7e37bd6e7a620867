"""A shard's order is read as a stranger's: what cannot be carried out is one line, whatever the bytes are."""

from __future__ import annotations

import contextlib
import io
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from builders.loops import loop_over
from loadgen.base.errors import LoadgenError, MeasureError, UsageError
from loadgen.fleet import shard_process
from loadgen.fleet.cluster_session import ClusterFiring
from loadgen.fleet.shard_actor import ShardOrder, unpack_order
from loadgen.fleet.shard_process import MOST_ORDER_BYTES, DriverLine
from loadgen.plan.request_sources import Seed, WordCounts
from loadgen.run.command.progress import Totals
from loadgen.run.stop_rules import StopRules
from loadgen.settings.shard_settings import Share

KEY = "sk-order-key-0123456789"
ORDER = ShardOrder(
    Share(1, 4), "0" * 32, "http://127.0.0.1:1", {"Authorization": f"Bearer {KEY}"}, "loadgen-",
    {"model": "m", "more_urls": ("http://127.0.0.1:2",), "metadata": ("a=b",), "workers": 2, "http2": True},
    "5%", {"input_len": 8, "output_len": 2, "num_prompts": 4}, Seed(1, chosen=True),
    word_counts={"chat": WordCounts(("a", "b"), 3.0, 1.5)},
)  # fmt: skip


def test_an_order_arrives_as_it_was_given() -> None:
    arrived = unpack_order(ORDER.pack())
    given = {**ORDER.given, "more_urls": ["http://127.0.0.1:2"], "metadata": ["a=b"]}
    assert {**asdict(arrived), "given": given} == {**asdict(ORDER), "given": given}
    options = arrived.options("runs", "totals")
    assert (options.shard, options.workers, options.more_urls) == (Share(1, 4), 2, ("http://127.0.0.1:2",))


@loop_over(
    ("changed", "why"),
    [
        ({"share": Share(4, 4)}, "there is no part 4 of 4"),
        ({"share": Share(0, 0)}, "there is no part 0 of 0"),
        ({"share": Share(-1, 4)}, "there is no part -1 of 4"),
        ({"share": Share(0, 2**62)}, "there is no part 0 of"),
        ({"given": {"launching": {"command": "rm"}}}, "an order has no option 'launching'"),
        ({"given": {"run_dir": "/"}}, "an order has no option 'run_dir'"),
        ({"given": {"workers": 10**6}}, "workers"),
        ({"given": {"workers": "auto"}}, "workers is not a number"),
        ({"given": {"model": 5}}, "model"),
        ({"given": {"more_urls": "http://h"}}, "more_urls"),
        ({"given": {"endpoint": "/a\r\nX: y"}}, "endpoint"),
        ({"headers": {"A": "b\r\nC: d"}}, "its headers"),
        ({"request_id_prefix": "a\r\nB: c"}, "request-id-prefix"),
        ({"max_failures": "many"}, ""),
        ({"seed": Seed(-1)}, "its seed is beyond any"),
        ({"word_counts": {"a": WordCounts(per_word=0.0)}}, "of no tokenizer"),
        ({"word_counts": {"a": WordCounts(overhead=math.nan)}}, "of no tokenizer"),
    ],
)
def test_an_order_that_cannot_be_carried_out_is_one_line(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError) as raised:
        unpack_order(replace(ORDER, **changed).pack())
    assert why in str(raised.value)
    assert str(raised.value).isprintable()
    assert KEY not in str(raised.value)


def test_any_bytes_are_an_order_or_one_line() -> None:
    rng, packed = random.Random(1), ORDER.pack()
    for _ in range(3000):
        data = bytearray(packed)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        cut = bytes(data[: rng.randint(0, len(data))]) if rng.random() < 0.2 else bytes(data)
        with contextlib.suppress(LoadgenError):
            unpack_order(cut).options("runs", "totals")


def line_of(tmp_path: Path, data: bytes) -> DriverLine:
    return DriverLine(tmp_path, io.BytesIO(data))


@loop_over(
    ("data", "why"),
    [
        (b"\xff" * 8, f"more than {MOST_ORDER_BYTES}"),
        ((5).to_bytes(8, "little") + b"abc", "the driver is gone"),
        ((0).to_bytes(8, "little"), "the driver's order is not valid"),
        ((2).to_bytes(8, "little") + b"\xc1\xc1", "the driver's order is not valid"),
        (b"", "the driver is gone"),
    ],
)
def test_what_is_no_order_is_refused(data: bytes, why: str, tmp_path: Path) -> None:
    with pytest.raises(LoadgenError, match=why):
        line_of(tmp_path, data).order()


def test_a_start_that_never_comes_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match="the driver's start is more than 3600 s from now"):
        line_of(tmp_path, b"\xff" * 8).start()


def test_a_profile_that_is_none_is_one_line(tmp_path: Path) -> None:
    packed = replace(ORDER, profile={"input_len": "long", "no_key": 1}).pack()
    line = line_of(tmp_path, len(packed).to_bytes(8, "little") + packed)
    with pytest.raises(UsageError, match="no_key"):
        shard_process.run_shard(line)


@loop_over(
    ("seen", "expected"),
    [
        ([Totals(decoded=3, failed=3), Totals(decoded=5, failed=3, cancelled=2)], (3, 3, 3)),
        ([Totals(decoded=3, failed=3), Totals(decoded=5, failed=3)], (5, 3, 0)),
        ([Totals(decoded=4, failed=1, cancelled=2), Totals(decoded=6, failed=3, cancelled=2)], (4, 3, 2)),
    ],
)
def test_cancelled_requests_end_no_row_of_failures(
    seen: list[Totals], expected: tuple[int, int, int], tmp_path: Path
) -> None:
    fleet: Any = SimpleNamespace(rule="")
    firing = ClusterFiring(fleet, StopRules(), tmp_path)
    for totals in seen:
        firing._note(totals)
    assert (firing.rules.ended, firing.rules.failed, firing.rules.in_a_row) == expected
