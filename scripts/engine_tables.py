"""Engine tables: what each engine counts, what the flags of a launch become, which fields may be refused."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import msgspec

from loadgen.engines.engine import EngineMetrics
from loadgen.engines.engines import ENGINES, METRICS
from loadgen.engines.refusals import FIELDS
from loadgen.settings.server_settings import ServerKeys
from loadgen.settings.setting import list_rows
from loadgen_servers.launch.installed import Installation
from loadgen_servers.launch.launchers import LAUNCHERS
from loadgen_servers.launch.spec import LaunchError, ServerSpec

_SPEC = ServerSpec(model="org/M", port=65000)
_SAMPLES: dict[Any, Any] = {int: 4243, float: 0.4243, str: "NAME", bool: True}
_SHOWN = {
    "16972": "4N",
    "0.4243": "X",
    "4243": "N",
    "65000": "P",
    os.path.abspath("DIR"): "DIR",
}  # in a command

Row = tuple[str, ...]


def list_counters() -> Iterator[Row]:
    """The names of each engine's and router's metrics, by the quantity that they are of."""
    owners = {engine.metrics.name: engine.name for engine in ENGINES if engine.metrics is not None}
    counted = [(row.label or owners[row.name], row) for row in METRICS.values()]
    yield "quantity", "metrics"
    for quantity in dict.fromkeys(
        each.quantity for metrics in METRICS.values() for each in metrics.meanings.values()
    ):
        yield f"`{quantity}`", _stack((name, _name_metrics(metrics, quantity)) for name, metrics in counted)


def _name_metrics(metrics: EngineMetrics, quantity: str) -> str:
    names: dict[str, str] = {}
    for name, series in metrics.meanings.items():
        if series.quantity == quantity:
            by = f" by `{series.label}`" if series.label not in ("", "le") else ""
            part = f" ({series.part})" if series.part not in ("", "sum") else ""
            names.setdefault(name.removesuffix("_bucket").removesuffix("_sum"), by + part)
    return ", ".join(f"`{name}`{more}" for name, more in names.items())


def list_launch_flags() -> Iterator[tuple[str, str]]:
    """The words that each flag of a launch adds to the command of an engine, or why the engine refuses it."""
    yield "flag", "in the command"
    launchers = {
        engine.name: sys.modules[LAUNCHERS[engine.launch_name].__module__]
        for engine in ENGINES
        if engine.launch_name
    }
    yield "always", _stack((name, _join(_list_words(module, {}))) for name, module in launchers.items())
    for flag, changes in _list_changes():
        cells = {name: _describe_change(module, changes) for name, module in launchers.items()}
        if set(cells.values()) != {"nothing"}:
            yield f"`{flag}`", _stack(cells.items())


def list_refused_fields() -> Iterator[Row]:
    """The fields that a server may refuse, what follows for the run, and what to type to do without them."""
    yield "field", "what is done", "to do without it"
    names = defaultdict[tuple[str, str], list[str]](list)
    for name, field in FIELDS.items():
        instead = f"sent as `{field.instead}`" if field.instead else ""
        left_out = f"left out: {field.cost}" if field.cost else ""
        own = f"leave out --{name.replace('_', '-')}"
        advice = field.advice.replace(own, "leave out its flag").replace(f"{name} in", "its key in")
        names[instead or left_out or "the command ends", advice].append(f"`{name}`")
    yield from ((", ".join(fields), what, advice) for (what, advice), fields in names.items())


def _stack(lines: Iterable[tuple[str, str]]) -> str:
    """A line for each engine in one cell; without those that have nothing to say."""
    return "<br>".join(f"{name}: {text}" for name, text in lines if text)


def _list_changes() -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "--served-model-name NAME", {"served_model_name": "NAME"}
    for row in list_rows(ServerKeys):
        kind = row.kinds[0]
        if kind in _SAMPLES:
            yield f"{row.option} {row.metavar or ''}".strip(), {row.name: _SAMPLES[kind]}
        if kind is bool:
            yield row.option.replace("--", "--no-", 1), {row.name: False}
    yield "--server-trace DIR", {"trace_directory": "DIR"}


def _describe_change(launcher: ModuleType, changes: Mapping[str, Any]) -> str:
    try:
        words = _list_words(launcher, changes)
    except LaunchError as error:
        return f"refused: {_show(str(error).partition(': ')[2] or str(error))}"
    usual = _list_words(launcher, {})
    return _join([word for word in words if word not in usual]) or "nothing"


def _list_words(launcher: ModuleType, changes: Mapping[str, Any]) -> list[str]:
    """The environment and the words of the command that an engine is started with."""
    spec = msgspec.structs.replace(_SPEC, **changes)
    program = getattr(launcher, "EXECUTABLE", launcher.__name__.rpartition(".")[2])
    command = launcher.serve_command(spec, Installation(program, None))
    argv = ["python" if command.argv[1] == "-m" else program, *command.argv[1:]]
    return [*(f"{name}={value}" for name, value in command.environment.items()), *argv]


def _join(words: Iterable[str]) -> str:
    """The words as code, a piece for each flag with its value, between which a cell's lines may break."""
    pieces: list[str] = []
    for word in words:
        if pieces and not word.startswith("--") and "=" not in pieces[-1]:
            pieces[-1] += f" {word}"
        else:
            pieces.append(word)
    return " ".join(f"`{_show(piece)}`" for piece in pieces).replace("|", "\\|")


def _show(text: str) -> str:
    for value, letter in _SHOWN.items():
        text = text.replace(value, letter)
    return text
