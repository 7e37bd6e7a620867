"""What the report, the result and a comparison have of the servers behind a router."""

from __future__ import annotations

from typing import Any

from builders import made_runs
from builders.loops import read_tables
from builders.made_cases import REQUESTS, observed, run
from builders.provoked_roles import role_window
from loadgen.base.structs import replace
from loadgen.features.roofline.estimate import add_ceiling
from loadgen.features.roofline.roofline_settings import Flags
from loadgen.features.routed.role_figures import measure_balance
from loadgen.report import report
from loadgen.report.run_directory import Result
from loadgen.server.server_counters import RoleWindow, ServerLatency
from loadgen.study.compare import comparability
from loadgen.study.pages import run_section
from loadgen.study.verify.proof import Proof, hold_copies

TABLES = read_tables("roles")
MS_10 = ServerLatency(count=8, mean_ms=10.0, brackets_ms={"50": (0, 20), "90": (0, 20), "99": (0, 20)})


def counting(role: str, name: str, requests: int, prompt: int, generated: int, **fields: Any) -> RoleWindow:
    window = observed(
        requests={"length": requests},
        prompt_tokens=prompt,
        generation_tokens=generated,
        prefix_queries=prompt,
        prefix_hits=prompt // 4,
        queue=MS_10,
        samples=(),
        **fields,
    )
    return role_window(name, role, window=window, peak_running=6.0, peak_waiting=0.0, peak_kv_cache_usage=0.5)


SERVERS = (
    counting("router", "r:29000", REQUESTS, 0, 0),
    counting("prefill", "p:8000", 320, 32000, 320, kv_transfers=8, kv_transfer_s=MS_10,
     kv_transfer_bytes=25_000_000),
    counting("decode", "d:8000", 240, 24000, 2640),
    counting("decode", "e:8000", 80, 8000, 880, kv_transfers_failed=1),
)  # fmt: skip


def routed() -> Result:
    made = run(role_windows=SERVERS, ceiling=None)
    return Result(made.facts, made.records)


def test_one_that_ended_has_no_balance_and_a_line_in_each_report() -> None:
    ended = {"ended_s": 2.5, "counted_s": 1.5, "ended_why": "/metrics answers 500"}
    made = run(role_windows=(*SERVERS[:3], SERVERS[3].model_copy(update=ended)), ceiling=None)
    result = Result(made.facts, made.records)
    assert measure_balance(result) == []
    for explain in (True, False):
        shown = " ".join(report.render_report(result, explain=explain).split())
        assert "decode e:8000 ended by 2.5 s: /metrics answers 500; its counts, also in the totals" in shown


def test_the_report_has_a_table_by_server() -> None:
    lines = report.render_report(routed(), explain=False).splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("Server  "))
    first = next(number for number, line in enumerate(lines) if number > head and line.startswith("----"))
    assert [line.split()[2:] for line in lines[first + 1 : first + 5]] == TABLES["by server"]
    assert lines[first + 5 : first + 12] == TABLES["below"]


def test_several_engines_have_no_roofline() -> None:
    assert "several servers share the load" in add_ceiling(routed().facts, Flags()).no_ceiling


def test_the_page_has_the_table_and_the_balance() -> None:
    account = run_section.make_account(made_runs.reported(routed()), "run-1", draw=False)
    (section,) = [each for each in account.sections if each.title == "By server"]
    assert section.table is not None
    assert [str(cell) for cell in section.table.body[2]] == [
        *("decode d:8000", "240", "24,000", "2,640", "75.0 %", "25.0 %", "10.00", "6", "0", "50.0 %")
    ]
    assert sum(line.startswith("balance of ") for line in section.lines) == 2


def test_a_comparison_says_which_servers_there_were() -> None:
    words = [
        comparability.describe_traits(made_runs.reported(of))["number of servers"]
        for of in (routed(), made_runs.run())
    ]
    assert words == ["2 × decode, 1 × prefill", "1 server"]


def test_totals_that_are_not_the_sum_of_the_servers_are_a_difference() -> None:
    for change, differences in ({}, 0), ({"generation_tokens": 3521}, 1):
        made = routed()
        facts = replace(made.facts, window=observed(**change))
        held = Proof()
        hold_copies(Result(facts, made.records), held)
        assert len(held.differences) == differences
