"""The tables of docs/ that are made from the code: `python scripts/doc_tables.py` writes them into the pages.

A table stands between `<!-- table NAME -->` and `<!-- end of table -->`. Run it after a change to a flag,
a figure, a doubt, a fact or anything else that a table lists: a test fails while a page is stale.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import api_docs
import engine_tables
import field_tables
import folder_table

import loadgen
from loadgen.base.errors import ExitCode
from loadgen.base.rule import Rule
from loadgen.cli import list_questions
from loadgen.engines.engines import ENGINES
from loadgen.features.attribution.attribution import EVIDENCE, PARTS
from loadgen.features.roofline import machines
from loadgen.figures import figure_table
from loadgen.figures.metrics import ClientHealth
from loadgen.plan import profile
from loadgen.report import request_rows
from loadgen.run.command.options import bench_parser
from loadgen.settings import request_settings, setting, vllm_flags
from loadgen.settings.server_settings import ServerKeys
from loadgen.settings.setting import Makes, SettingRow, list_rows
from loadgen.settings.table import PROFILE_KEYS
from loadgen.study.audit.findings import CHECKS
from loadgen.study.compare.comparability import COMPARABILITY
from loadgen.study.quality.quality_record import USUAL_KL
from loadgen.study.series.sweep_command import sweep_parser
from loadgen.verdict.verdict import DOUBTS

_ROOT = Path(__file__).parent.parent
_TESTS = _ROOT / "tests"
_TABLE = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
_PAGE = re.compile(r"\bdocs/([\w-]+\.md)")


def main() -> None:
    """Write every table into its page, and print the names of the pages that this changed."""
    for path in [_ROOT / "README.md", *sorted(_ROOT.glob("docs/*.md"))]:
        page = path.read_text("utf-8")
        if (filled := fill(page)) != page:
            path.write_text(filled, "utf-8")
            print(path.relative_to(_ROOT))


def fill(page: str) -> str:
    """Return a page with each of its tables as the code makes it now; raises KeyError for another name."""
    return _TABLE.sub(lambda mark: f"{mark[1]}\n{TABLES[mark[2]]().strip()}\n\n{mark[3]}", page)


def find_tables(page: str) -> list[str]:
    """Return the names of the tables that a page has."""
    return [mark[2] for mark in _TABLE.finditer(page)]


def remove_tables(page: str) -> str:
    """Return what people wrote of a page: all but its tables."""
    return _TABLE.sub("", page)


def _grid(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(titles)
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join([*lines, ""])


def _verbs() -> str:
    groups = list_questions().values()
    rows = ((question, f"`loadgen {name}`") for verbs in groups for name, question in verbs.items())
    return _grid(("question", "command"), rows)


def _vllm_flags() -> str:
    rows = ((f"`{flag}`", what, _marked(why)) for flag, what, why in vllm_flags.list_flags())
    return _grid(("flag", "here", ""), rows)


def _apis() -> str:
    names: dict[str, list[str]] = {ours: [ours] for ours in request_settings.APIS}
    for name, ours in request_settings.API_ALIASES.items():
        names[ours].append(name)
    rows = [(_listed(those), f"`{ours}`") for ours, those in names.items()]
    reasons: dict[str, list[str]] = {}
    for name, reason in request_settings.REFUSED_APIS.items():
        reasons.setdefault(reason, []).append(name)
    rows += [(_listed(those), f"refused: {_marked(reason)}") for reason, those in reasons.items()]
    return _grid(("name", "here"), rows)


def _bench_flags() -> str:
    return "\n".join(_flag_groups(bench_parser()))


def _flag_groups(parser: argparse.ArgumentParser) -> Iterator[str]:
    for group in parser._action_groups:
        shown = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
        rows = [(_listed(each.option_strings), _value(each), _help(each.help)) for each in shown]
        if group.title in setting.GROUP_ORDER:
            yield f"## {_linked(group.title[0].upper() + group.title[1:])}\n"
            yield _grid(("flag", "value", "meaning"), rows)


def _flag_group(title: str, make: Callable[[], argparse.ArgumentParser] = bench_parser) -> str:
    """The flags of one group of a command, for the page that is about them."""
    (actions,) = (
        group._group_actions for group in make()._action_groups if (group.title or "").startswith(title)
    )
    rows = ((_listed(each.option_strings), _value(each), _help(each.help)) for each in actions)
    return _grid(("flag", "value", "meaning"), rows)


def _value(action: argparse.Action) -> str:
    """The value that a flag takes: its name, or those that there are."""
    if isinstance(action.metavar, str):
        return f"`{action.metavar}`".replace("|", "\\|")
    return _listed(map(str, action.choices or ()))


def _profiles() -> str:
    return _grid(
        ("name", "workload"),
        ((f"`{name}`", profile.load(name, {}).description) for name in profile.list_shipped()),
    )


def _profile_keys() -> str:
    return "\n".join(_sections(list_rows(*PROFILE_KEYS)))


def _sections(rows: Iterable[SettingRow]) -> Iterator[str]:
    every = [row for row in rows if row.group]
    for group in setting.GROUP_ORDER:
        if own := [row for row in every if row.group == group]:
            yield f"### {_linked(group[0].upper() + group[1:])}\n"
            yield _grid(("key", "default", "flag", "meaning"), map(_key, own))


def _server_keys() -> str:
    return _grid(("key of `[server]`", "default", "flag", "meaning"), map(_key, list_rows(ServerKeys)))


def _key(row: SettingRow) -> tuple[str, str, str, str]:
    empty = row.default is None or row.default in ("", (), {})
    default = "" if empty else f"`{json.dumps(row.default).replace('Infinity', 'inf')}`"
    return f"`{row.name}`", default, f"`{row.option}`", _help(row.help)


def _help(text: str | None) -> str:
    """A help text in a cell: as argparse prints it, and as Markdown."""
    return _marked((text or "").replace("%%", "%").replace("|", "\\|").replace("<", "&lt;"))


def _machines() -> str:
    kinds = ("bf16", "fp8", "fp4", "int8")
    rows = []
    for key, machine in machines.list_machines().items():
        peaks = (machine.peak_flop_per_s.get(kind) for kind in kinds)
        tflops = ("–" if peak is None else f"{peak / 1e12:g}" for peak in peaks)
        rows.append((f"`{key}`", f"{machine.bandwidth_bytes_per_s / 1e9:g}", *tflops, _marked(machine.note)))
    return _grid(("key", "GB/s", *(f"{kind} TFLOPS" for kind in kinds), ""), rows)


def _folders() -> str:
    folders = folder_table.list_folders()
    return _grid(
        ("folder", "what it is", "most used"),
        ((f"`{name}`", what, _listed(most)) for name, what, most in folders),
    )


def _dependencies() -> str:
    """The dependencies and extras of pyproject.toml, each with the comment behind it."""
    text = (_ROOT / "pyproject.toml").read_text("utf-8")
    needed, _, extras = text.partition("[project.optional-dependencies]")
    rows = re.findall(
        r'^  "([\w-]+)[^"]*", +# (.+)$', needed.partition("\ndependencies = [")[2], re.MULTILINE
    )
    for name, packages, why in re.findall(r"^(\w+) = \[(.+)\]  # (.+)$", extras, re.MULTILINE):
        rows.append((f"`[{name}]`: " + ", ".join(re.findall(r'"([\w-]+)', packages)), why))
    return _grid(("package", "for"), rows)


def _faults() -> str:
    return "\n".join([*_import_test("fakes.faults_table").lines(), ""])


def _found_broken() -> str:
    with (_TESTS / "whole" / "found_broken.csv").open(encoding="utf-8", newline="") as file:
        titles, *rows = csv.reader(file)
    return _grid(titles, ((*cells, _listed(tests.split())) for *cells, tests in rows))


def _fields(titles: tuple[str, str], fields: Callable[[], Iterable[tuple[str, str]]]) -> str:
    return _grid(titles, ((f"`{name}`", _marked(text)) for name, text in fields()))


def _usual_kl() -> str:
    rows = ((bits, name, f"{low:g} to {high:g}") for bits, name, low, high in USUAL_KL)
    return _grid(("about", "llama.cpp's", "KL, nats a token"), rows)


def _makes() -> str:
    """The keys of a profile by what they make, and what follows where two runs differ in one."""
    rows = []
    for name, words in field_tables.describe_fields(Makes).items():
        what, _, follows = words.partition(": ")
        keys = (row.name for row in list_rows(*PROFILE_KEYS) if row.makes is Makes[name])
        rows.append((f"{Makes[name].value}: {what}", _listed(keys), follows))
    return _grid(("what they make", "keys", "where two runs differ in one"), rows)


def _engines(rows: Callable[[], Iterator[Iterable[str]]]) -> str:
    titles, *lines = rows()
    return _grid(titles, (map(_marked, cells) for cells in lines))


def _evidence() -> str:
    tests = _import_test("verdict.test_doubts")
    found = (f"{rule.code}: {rule.find(tests.PROVOKED[rule.code][0])}" for rule in DOUBTS)
    return "\n".join(["```", *found, "```", ""])


def _parts() -> str:
    rows = ((part.label, part.group, part.about, part.remedy) for part in PARTS)
    return _grid(("part", "whose", "what it is", "what to do"), (map(_marked, row) for row in rows))


def _attribution_evidence() -> str:
    labels = {part.key: part.label for part in PARTS}
    ways = [engine.own_times for engine in ENGINES if engine.own_times]
    rows = (
        (kind.label, ", ".join(labels[key] for key in kind.parts), kind.remedy or "; ".join(ways))
        for kind in EVIDENCE
    )
    return _grid(("evidence", "parts", "by"), (map(_marked, row) for row in rows))


def _import_test(name: str) -> ModuleType:
    """A module of the tests, as they import it."""
    sys.path.append(str(_TESTS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(_TESTS))


def tabulate_rules(rules: Sequence[Rule[Any]], title: str, heading: str = "##") -> str:
    """Write rules as Markdown tables, one per severity, gravest first; `title` heads the codes' column."""
    return "\n".join(_rule_rows(rules, title, heading))


def _rule_rows(rules: Sequence[Rule[Any]], title: str, heading: str) -> Iterator[str]:
    sources = len({rule.source for rule in rules}) > 1
    for severity in sorted({rule.severity for rule in rules}, reverse=True):
        yield f"{heading} {severity.name.capitalize()}\n"
        yield f"| {title} | condition |{' judged by |' * sources} remedy |"
        yield f"| --- | --- |{' --- |' * sources} --- |"
        for rule in (rule for rule in rules if rule.severity is severity):
            source = f" {rule.source} |" * sources
            yield f"| `{rule.code}` | {rule.condition} |{source} {rule.remedy} |"
        yield ""


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _linked(words: str) -> str:
    return _PAGE.sub(r"[\1](\1)", words)


def _marked(words: str) -> str:
    """The words with each flag as code and each page as a link, where they are not inside code."""
    parts = words.rstrip(",").split("`")
    parts[::2] = [_linked(re.sub(r"(--[a-z][\w-]*)", r"`\1`", part)) for part in parts[::2]]
    return "`".join(parts)


_COMPARED = ("figure", "ours", "vLLM 0.33", "where they differ")


def _figures(rows: Iterable[figure_table.Figure], titles: tuple[str, ...]) -> str:
    """Figures with a formula, as many columns as there are titles."""
    cells = (
        (
            f"{row.label} `{row.key}`".strip(),
            row.definition,
            row.vllm,
            row.difference,
            ", ".join(
                f"{figure_table.CLIENTS.get(client, client)} `{name}`" for client, name in row.names.items()
            ),
        )[: len(titles)]
        for row in rows
        if row.definition
    )
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, ("---",) * len(titles), *cells))


TABLES: dict[str, Callable[[], str]] = {
    "usual-kl": _usual_kl,
    "parts": _parts,
    "attribution-evidence": _attribution_evidence,
    "api": partial(api_docs.rendered, loadgen),
    "apis": _apis,
    "verbs": _verbs,
    "flags-vllm": _vllm_flags,
    "flags": _bench_flags,
    "flags-sessions": partial(_flag_group, "sessions of several turns"),
    "flags-traces": partial(_flag_group, "traces"),
    "flags-images": partial(_flag_group, "images"),
    "flags-roofline": partial(_flag_group, "roofline"),
    "flags-stop": partial(_flag_group, "rules to stop"),
    "flags-sweep": partial(_flag_group, "what is varied", sweep_parser),
    "profiles": _profiles,
    "profile-keys": _profile_keys,
    "server-keys": _server_keys,
    "latencies": partial(_figures, figure_table.LATENCY_ROWS, (*_COMPARED, "what other clients call it")),
    "speeds": partial(_figures, figure_table.SPEED_ROWS, ("figure", "ours", "who else has it")),
    "rates": partial(_figures, figure_table.RATE_ROWS, _COMPARED),
    "doubts": partial(tabulate_rules, DOUBTS, "doubt"),
    "audit-doubts": partial(tabulate_rules, CHECKS, "doubt", "###"),
    "comparability": partial(tabulate_rules, COMPARABILITY, "rule", "###"),
    "makes": _makes,
    "health": partial(
        _fields, ("figure", "what"), lambda: field_tables.describe_fields(ClientHealth).items()
    ),
    "machines": _machines,
    "counters": partial(_engines, engine_tables.list_counters),
    "launch-flags": partial(_engines, engine_tables.list_launch_flags),
    "refused-fields": partial(_engines, engine_tables.list_refused_fields),
    "facts": partial(_fields, ("key under `loadgen`", "what"), field_tables.describe_facts),
    "columns": partial(
        _fields, ("column", "what"), lambda: ((row.name, row.about) for row in request_rows.COLUMNS)
    ),
    "arrivals": partial(_fields, ("array", "what"), field_tables.describe_arrays),
    "exit-codes": lambda: _grid(
        ("code", "meaning"), ((str(int(code)), _marked(code.meaning)) for code in ExitCode)
    ),
    "folders": _folders,
    "dependencies": _dependencies,
    "faults": _faults,
    "found-broken": _found_broken,
    "evidence": _evidence,
}

if __name__ == "__main__":
    main()
