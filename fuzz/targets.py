"""Targets: what is fuzzed, each a function of bytes by its dotted name, imported when it is run."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent


class Target(NamedTuple):
    """One row: the function, what is instrumented, where its seeds are, and how long an input may be."""

    function: str  # module:function, which takes bytes and raises nothing
    instrumented: tuple[str, ...]  # modules under test, by their beginnings
    seeds: tuple[str, ...] = ()  # patterns below tests/data
    longest: int = 4096  # bytes
    words: bool = True  # whether the strings of these modules are its dictionary


_READERS, _RUNS = "fuzzing.fuzz_targets_readers", "fuzzing.fuzz_targets_runs"
_DECODE, _CONTROL = "fuzzing.fuzz_targets_decode", "fuzzing.fuzz_targets_control"
_DATA, _ROWS = "fuzzing.fuzz_targets_data", ("loadgen.features.data",)
_TRACES = ("loadgen.features.traces",)
_USER = "fuzzing.fuzz_targets_user"
_BUNDLES, _BUNDLED = "fuzzing.fuzz_targets_bundles", ("loadgen.study.bundle", "loadgen.study.verify")
_ANSWERS = (
    "loadgen.records.decode",
    "loadgen.wire.openai",
    "loadgen.features.apis.messages_api",
    "loadgen.features.apis.responses_api",
    "loadgen.features.apis.generate_api",
    "loadgen.records.decoded_stream",
    "loadgen.base.untrusted",
)
_OTHERS = ("loadgen.study.importers", "loadgen.base.parsing")
_STORED = (
    "loadgen.records.record",
    "loadgen.base.arrays",
    "loadgen.records.journal",
)
_FILES = (
    "loadgen.server.checkpoint",
    "loadgen.plan.model_files",
    "loadgen.base.untrusted",
    "loadgen.features.roofline",
)
_RESPONSES = ("responses/vllm-0.32/*", "responses/sglang-0.5.23/*")
TARGETS = {
    # what a server sends
    "http": Target(f"{_READERS}:http", ("loadgen.wire.http1",), _RESPONSES, 1024),
    "sse": Target(f"{_READERS}:sse", ("loadgen.wire.sse",), _RESPONSES, 256),
    "decode": Target(
        f"{_DECODE}:decode_any",
        (*_ANSWERS, "loadgen.wire.sse", "loadgen.wire.http1"),
        _RESPONSES,
        1024,
    ),
    "exposition": Target(f"{_READERS}:exposition", ("loadgen.server.prometheus",), ("metrics/*.txt",), 2048),
    "metrics": Target(
        f"{_CONTROL}:metrics",
        ("loadgen.server.prometheus", "loadgen.server.server_counters"),
        ("metrics/*.txt",),
        2048,
    ),
    "metric_lines": Target(
        f"{_CONTROL}:metric_lines",
        ("loadgen.server.prometheus", "loadgen.server.server_counters"),
        (),
        1024,
    ),
    "server_info": Target(
        f"{_CONTROL}:server_info", ("loadgen.server.engine_config", "loadgen.base.untrusted"), ()
    ),
    "json_value": Target(f"{_CONTROL}:json_value", ("loadgen.base.untrusted",), ("configs/*.json",), 1024),
    "log": Target(f"{_CONTROL}:log", ("loadgen.server.engine_config",), ("server_logs_as_run/*.log",), 1024),
    "hide": Target(f"{_READERS}:hide", ("loadgen.host.environment", "loadgen.base.secrecy"), (), 256),
    "text": Target(f"{_READERS}:text", ("loadgen.base.text",), (), 512),
    # files of a model
    "config": Target(f"{_CONTROL}:config", _FILES, ("configs/*.json",)),
    "index": Target(f"{_CONTROL}:index", _FILES, ("configs/*.json",)),
    "safetensors": Target(f"{_CONTROL}:safetensors", _FILES),
    "gguf_head": Target(f"{_CONTROL}:gguf_head", ("loadgen.server.checkpoint",), (), 1024),
    # results of others
    "documents": Target(f"{_READERS}:client_documents", _OTHERS),
    "odd_documents": Target(f"{_READERS}:odd_documents", _OTHERS, (), 64, words=False),
    "sheet": Target(
        f"{_READERS}:sheet",
        ("loadgen.study.importers.pasted.pasted_tables", "loadgen.study.speed.speed_rows", *_OTHERS),
        ("published/*.csv",),
        512,
    ),
    "page": Target(
        f"{_READERS}:page",
        ("loadgen.study.importers",),
        ("results/*.txt", "published/*.md", "published/*.rst"),
        1536,
    ),
    "results": Target(f"{_READERS}:results", ("loadgen.study.importers",), ("results/*.txt",), 3072),
    "printed": Target(f"{_READERS}:printed", _OTHERS, ("printed/*.txt", "results/*.txt"), 2048),
    "compare": Target(f"{_READERS}:compare", ("loadgen.study.importers", "loadgen.study.compare"), (), 3072),
    "audit": Target(
        f"{_READERS}:audit",
        ("loadgen.study.importers", "loadgen.study.consistency", "loadgen.study.audit"),
        (),
        3072,
    ),
    # bundles of strangers
    "bundle": Target(f"{_BUNDLES}:bundle", _BUNDLED, (), 64, words=False),
    "bundle_sums": Target(f"{_BUNDLES}:bundle_sums", _BUNDLED, (), 64, words=False),
    "bundled_result": Target(
        f"{_BUNDLES}:bundled_result", (*_BUNDLED, "loadgen.report"), (), 64, words=False
    ),
    # files of a user
    "profile": Target(
        f"{_READERS}:profile", ("loadgen.plan.profile", "tomllib"), ("../../profiles/*.toml",), 512
    ),
    "campaign": Target(
        f"{_READERS}:campaign",
        ("loadgen.study.series.campaign.campaign_file", "tomllib"),
        ("../../profiles/campaigns/*.toml",),
        1024,
    ),
    "dataset": Target(f"{_DATA}:dataset", _ROWS, ("datasets/*.jsonl",), 1024),
    "dataset_csv": Target(f"{_DATA}:dataset_csv", _ROWS, ("datasets/*.csv",), 512),
    "odd_rows": Target(f"{_DATA}:odd_rows", _ROWS, ("datasets/prompts.jsonl",), 64, words=False),
    "odd_traces": Target(f"{_DATA}:odd_traces", _TRACES, ("traces/weka_agents.jsonl",), 64, words=False),
    "trace": Target(f"{_DATA}:trace", (*_TRACES, *_ROWS), ("traces/*",), 1024),
    "named_dataset": Target(f"{_USER}:named_dataset", _ROWS, ("datasets/*.jsonl",), 1024),
    "servegen": Target(f"{_USER}:servegen", (*_TRACES, *_ROWS), (), 1024),
    "corpus": Target(f"{_USER}:corpus", ("loadgen.plan.prompt_texts",), (), 512),
    # words of a command line
    "command_words": Target(
        f"{_USER}:command_words", ("loadgen.run.command.options", "loadgen.settings.table"), (), 256
    ),
    "start_at": Target(f"{_USER}:start_at", ("loadgen.settings.shard_settings",), (), 48, words=False),
    "base_url": Target(f"{_USER}:base_url", ("loadgen.base.urls",), (), 128),
    # records of many runs
    "records": Target(
        f"{_USER}:records",
        ("loadgen.study.series_record", "loadgen.study.series.campaign.campaign_store"),
        (),
        2048,
    ),
    "odd_records": Target(
        f"{_USER}:odd_records", ("loadgen.report", "loadgen.study.importers"), (), 64, words=False
    ),
    # what a run leaves
    "frame": Target(f"{_RUNS}:frame", ("loadgen.records.record",), (), 2048),
    "journal": Target(f"{_RUNS}:any_journal", _STORED, (), 2048),
    "arrivals": Target(f"{_RUNS}:arrivals", _STORED, ("run_directories/smoke/arrivals.npz",), 16384),
    "columns": Target(f"{_RUNS}:columns", _STORED, (), 256, words=False),
    "run_directory": Target(
        f"{_RUNS}:run_directory",
        ("loadgen.report.run_directory", "loadgen.facts.run_facts"),
        (),
        8192,
    ),
    "odd_run": Target(
        f"{_RUNS}:odd_run",
        ("loadgen.report.run_directory", "loadgen.facts.run_facts"),
        (),
        64,
        words=False,
    ),
}


def corpus(name: str) -> Path:
    """Where inputs of a target are kept: those that reach far, and what once broke it."""
    return HERE / "corpus" / name


def inputs(name: str) -> list[Path]:
    """The files that a target begins with."""
    seeds = [path for pattern in TARGETS[name].seeds for path in sorted((ROOT / "tests/data").glob(pattern))]
    return [path for path in (*sorted(corpus(name).glob("*")), *seeds) if path.is_file()]
