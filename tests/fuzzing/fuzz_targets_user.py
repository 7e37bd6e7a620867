"""Functions of bytes for `python -m fuzz` and the suite: what a user writes, and records of many runs."""

from __future__ import annotations

import contextlib
import json
import logging
from functools import cache
from typing import Any

from builders.made_limits import limit_record
from fuzzing.fuzz_files import place, written
from fuzzing.fuzz_odd import replaced, spots
from fuzzing.fuzz_targets_data import SERVER
from loadgen.base import urls
from loadgen.base.errors import UsageError
from loadgen.base.passages import render_passages
from loadgen.base.text import clean_text
from loadgen.fleet.shards_command import plan_launch
from loadgen.plan import plan, profile
from loadgen.plan.request_sources import Seed
from loadgen.run.command import options
from loadgen.server.exchange import ServerAddress
from loadgen.settings.shard_settings import read_instant as read_start
from loadgen.study import limit_record as limits
from loadgen.study import sweep_record
from loadgen.study.importers import result_sources
from loadgen.study.limit_record import LIMIT
from loadgen.study.series.campaign import campaign_store
from loadgen.study.sweep_record import SWEEP, SweepPoint, SweepRecord

_WORD = b"\0"  # between the words of a command line
_NAMED = ("sharegpt", "custom", "timed_trace")
_KINDS = (SweepRecord, limits.LimitRecord, campaign_store.CampaignRecord)


def command_words(data: bytes) -> None:
    """The words of a command line, as `bench` and as `shards` read them."""
    words = [word.decode("utf-8", "replace") for word in data.split(_WORD)]
    logging.disable(logging.WARNING)
    try:
        for read in (options.parse, lambda given: plan_launch(2, given)):
            with contextlib.suppress(UsageError):
                read(words)
    finally:
        logging.disable(logging.NOTSET)


def start_at(data: bytes) -> None:
    """An instant at which to begin."""
    with contextlib.suppress(UsageError, ValueError):
        start = read_start(data.decode("utf-8", "replace"))
        str(start)
        start.check(0)


def base_url(data: bytes) -> None:
    """A base URL, and an endpoint."""
    url, _, endpoint = data.decode("utf-8", "replace").partition(" ")
    with contextlib.suppress(UsageError):
        pasted = urls.parse_base_url(url, endpoint or None)
        assert "\n" not in ServerAddress(pasted.base_url).shown_url


def named_dataset(data: bytes) -> None:
    """A data set by each name that reads a file."""
    path = str(written(data, "data.json"))
    for name in _NAMED:
        _planned(dataset_name=name, dataset_path=path)


def servegen(data: bytes) -> None:
    """A client of ServeGen's: its table, a line of two signs, its lengths."""
    table, _, lengths = data.partition(b"\n==\n")
    directory = place("servegen_client")
    (directory / "c_chunk-0-dataset.json").write_bytes(lengths)
    at = directory / "c_chunk-0-trace.csv"
    at.write_bytes(table)
    _planned(trace=str(at))


def corpus(data: bytes) -> None:
    """A text of which prompts are made."""
    _planned(prompt_corpus=str(written(data, "corpus.txt")), prompt_format="corpus", num_prompts=2)


def _planned(**keys: Any) -> None:
    with contextlib.suppress(UsageError):
        made = plan.make(profile.build(keys), SERVER, Seed(1, chosen=True))
        made.digest()
        for i in range(min(len(made), 8)):
            made.body(i)


def records(data: bytes) -> None:
    """The record of a sweep, a search or a campaign, as the directory that holds it is read."""
    for kind in _KINDS:
        with contextlib.suppress(UsageError):
            kind.parse(data, place() / kind.file_name)


@cache
def _records() -> list[tuple[str, Any, list[tuple[Any, ...]]]]:
    points = tuple(SweepPoint(number=i, settings={"max_concurrency": 1 << i}) for i in range(2))
    command = ("loadgen", "sweep")
    sweep = SweepRecord(name="s", command=command, fixed="", seed=0, axis="concurrency", points=points)
    known = {SWEEP: sweep.model_dump(mode="json"), LIMIT: limit_record().model_dump(mode="json")}
    return [(name, record, spots(record)) for name, record in known.items()]


def odd_records(data: bytes) -> None:
    """Records of a sweep and of a search with odd values in them: the first byte says which."""
    if not data:
        return
    name, record, every = _records()[data[0] % 2]
    text = json.dumps(replaced(record, every, data[1:])).encode()
    directory = written(text, name, f"odd_{name}").parent
    with contextlib.suppress(UsageError):
        read = result_sources.read_sources([str(directory)])
        for sweep in read.sweeps:
            clean_text("\n".join(sweep_record.list_unfinished(sweep.points))).encode()
        for limit in read.limits:
            clean_text(render_passages([limits.make_search_passage(limit.record)])).encode()
