"""Rungs: a run as a row of the Qwen pages' tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from msgspec.structs import asdict

from loadgen.engines import engines
from loadgen.report.run_directory import Result
from loadgen.report.speed_formulas import FORMULAS, TOTAL
from loadgen.report.speed_rows import EngineSetting, Memory, SpeedRow, ThroughputRow, rounded
from loadgen.roofline.checkpoint import Checkpoint
from loadgen.roofline.models import split_gguf
from loadgen.verdict.run_facts import Facts
from loadgen.verdict.run_roofline import devices
from loadgen.verdict.verdict import Level

_PUBLISHED_AS = {"transformers serve": "Transformers"}
_DECIMALS = ("speed_tok_s", "ttft_ms", "decode_tok_s")
# The pages' words in their order; then whatever else the engine was given, but where it is and for whom.
_WORDS = ("gpu_memory_utilization", "max_model_len", "enforce_eager")
_PLACE = (
    "host", "port", "served_model_name", "model", "model_path", "tensor_parallel_size", "tp_size",
    "profiler_config",
)  # fmt: skip


def row(run: Result, formula: str) -> SpeedRow:
    """The speed of one rung, tokens and seconds summed over its repeats; else the note has the reason.

    A request's time is from its first byte sent to the last received, prefill included. TTFT and decoding are
    those of the run's report: means over the rung's requests; None where nothing was streamed.
    """
    facts, records, ok = run.facts, run.records, run.records.ok
    seconds = int((records.end_ns[ok] - records.sent_ns[ok]).sum()) / 1e9
    prompt, output = int(records.input_tokens[ok].sum()), int(records.output_tokens[ok].sum())
    base, quantization = name(facts)
    ttft, tpot = run.metrics.ttft, run.metrics.tpot
    return SpeedRow(
        model=base,
        backend=backend(facts.server.engine),
        gpu=facts.environment.get("gpu", facts.environment.get("cpu", "")),
        input_length=facts.profile.input_len,
        quantization=quantization,
        gpu_num=(devices(facts) or 1) if ok.any() and "gpu" in facts.environment else None,
        speed_tok_s=rounded(FORMULAS[formula](prompt, output, seconds)) if ok.any() else None,
        gpu_memory=_memory(facts),
        note=", ".join(_notes(run)),
        formula=formula,
        output_length=facts.profile.output_len,
        setting=setting(facts),
        ttft_ms=rounded(ttft.mean_ms) if ttft.n else None,
        decode_tok_s=rounded(1e3 / tpot.mean_ms) if tpot.n and tpot.mean_ms > 0 else None,
    )


def throughput_row(run: Result) -> ThroughputRow:
    """Prompts sent all at once: requests and tokens over the time for all of them."""
    metrics, formula = run.metrics, FORMULAS[TOTAL]
    rate = formula(metrics.total_input_tokens, metrics.total_output_tokens, metrics.duration_s)
    qps = rounded(metrics.completed / metrics.duration_s)
    return ThroughputRow(*name(run.facts), metrics.completed, qps, rounded(rate), _doubts(run))


def name(facts: Facts) -> tuple[str, str]:
    """The model's base name and its quantization: by its name, else by its files, else unknown."""
    root = "" if facts.server.simulated else facts.server.model_root  # a simulation's names its timing
    return named(root or facts.server.model, facts.checkpoint)


def named(model: str, files: Checkpoint | None) -> tuple[str, str]:
    """A model's base name and its quantization, as `name` has them."""
    base, quantization = split_gguf(model)
    return base, quantization or (files.quantization if files is not None else "")


def backend(engine: str) -> str:
    """An engine by the name that the pages give it."""
    return _PUBLISHED_AS.get(engine, engine)


def setting(facts: Facts) -> EngineSetting | None:
    """What the engine was given when it was started here; None where it was not, or was given nothing."""
    if facts.launched is None:
        return None
    command, image = facts.launched.command, facts.launched.image
    # What stands before a container's image is for its engine: docker's --gpus, podman's --device.
    given = dict(_flags(command[command.index(image) :] if image else command))
    if facts.server.engine == "vLLM" and given.keys() & set(_WORDS):
        given.setdefault("enforce_eager", "False")  # its default, which the pages write out
    words = {word: given[word] for word in (*_WORDS, *given) if word in given and word not in _PLACE}
    return EngineSetting.of(**words) if words else None


def _flags(argv: list[str]) -> Iterator[tuple[str, str]]:
    """The flags of a command: their values, True without one, False for --no-."""
    for position, word in enumerate(argv):
        if not word.startswith("--"):
            continue
        option, equals, value = word.partition("=")
        flag = option[2:].replace("-", "_")
        following = argv[position + 1] if position + 1 < len(argv) else "--"
        if equals:
            yield flag, value
        elif not following.startswith("--"):
            yield flag, following
        else:
            yield flag.removeprefix("no_"), str(not flag.startswith("no_"))


def _memory(facts: Facts) -> Memory | None:
    """The server's peak memory, where its engine takes it as it needs it: on the GPU, else the host's."""
    engine = engines.find_by_name(facts.server.engine)
    if engine.takes_all_memory or facts.sensed is None:
        return None
    level = facts.sensed.server or facts.sensed.pss or facts.sensed.rss
    return Memory.of_bytes(level.peak_bytes, "MB") if level is not None else None


def remarks(run: Result, known: Collection[str] = ()) -> Iterator[str]:
    """What a reader of any row must know: that no model ran, failures, doubts but for those `known`."""
    yield from _failures(run)
    if run.records.ok.any() and not set(run.verdict.reasons) <= set(known):
        yield _doubts(run)


def _failures(run: Result) -> Iterator[str]:
    failed = run.records.failed
    if run.facts.server.simulated:
        yield "SIMULATED, no model ran"
    if failed:
        yield f"{len(failed)} of {len(run.records)} failed: {failed[0].kind}: {failed[0].detail}"


def _notes(run: Result) -> Iterator[str]:
    """What a reader of the row must know: failures, other lengths than asked for, whose memory, doubts."""
    records, profile = run.records, run.facts.profile
    ok = records.ok
    yield from _failures(run)
    if not ok.any():
        return
    if profile.max_concurrency != 1:
        yield f"{profile.max_concurrency or 'all'} at a time"
    for what, column, wanted in (
        ("input", records.input_tokens[ok], profile.input_len),
        ("output", records.output_tokens[ok], profile.output_len),
    ):
        if (column != wanted).any():
            least, most = int(column.min()), int(column.max())
            yield f"{what} of {least}" + (f" to {most}" if most > least else "") + f" tokens, not {wanted}"
    sensed = run.facts.sensed
    if _memory(run.facts) is not None and sensed is not None and sensed.server is None:
        yield "host memory"
    yield from filter(None, [_doubts(run)])


def _doubts(run: Result) -> str:
    """The verdict where it is not VALID, and what it rests on."""
    if run.verdict.level is Level.VALID:
        return ""
    return f"{run.verdict.level.value}: {', '.join(run.verdict.reasons)}"


def line(row: SpeedRow) -> str:
    """A rung as it ends: input 6144: TTFT 310.20 ms, decode 148.10 tok/s, output/time 97.10 tok/s."""
    figures = [f"TTFT {row.ttft_ms} ms"] * (row.ttft_ms is not None)
    figures += [f"decode {row.decode_tok_s} tok/s"] * (row.decode_tok_s is not None)
    figures += [f"{row.formula} {row.speed_tok_s} tok/s"] * (row.speed_tok_s is not None)
    return f"input {row.input_length}: {', '.join(figures) or '-'}" + f" ({row.note})" * bool(row.note)


def json(row: SpeedRow, run: str) -> dict[str, Any]:
    """A row as JSON has it, and the directory of its run; "" where nothing ran."""
    memory = row.gpu_memory
    return {
        **asdict(row),
        **{key: None if (value := getattr(row, key)) is None else float(value) for key in _DECIMALS},
        "gpu_memory": None if memory is None else float(memory.amount),
        "gpu_memory_unit": None if memory is None else memory.unit,
        "setting": None if row.setting is None else dict(row.setting.words),
        "run": run,
    }
