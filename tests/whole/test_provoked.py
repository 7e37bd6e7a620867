"""Each doubt is provoked by a run against a real server, and is absent where nothing is wrong."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Set
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from builders import provocations as made
from builders.provocations import Provocation, engine, exposed, failing, metered, null
from builders.provoked_runs import OF_DATA
from builders.provoked_scale import OF_SCALE
from fakes.scripted_server import token, usage
from loadgen import cli
from loadgen.host import throttling
from loadgen.report import run_directory
from loadgen.report.run_directory import REPORT, RESULT
from loadgen.server import scraper
from loadgen.transport import packet_ring
from loadgen.verdict import verdict
from loadgen.verdict.doubts import DOUBTS

pytestmark = [
    pytest.mark.whole,
    # Python 3.12 warns of any thread at a fork; the child takes none of their locks.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
SHORT_RUN = {"thin-percentiles", "few-per-slot", "ramp-and-drain"}
BUSY_MACHINE = {"busy-loop", "other-processes"}  # other tests run next to these
# What any run shows in which the whole machine stood still, as virtual ones do for 60 ms now and then: the
# client reads late, and the server writes at once what was due. Such a run tells nothing, and is repeated.
STOOD_STILL = {"reads-late", "messages-together", "sends-late", "concurrency-not-held", "late-bodies"}
STOOD_STILL |= {"client-stopped", "throughput-trend", "first-wave"}  # over a second, or in a part of the run
ATTEMPTS = 5
FOUR = "--random-input-len 64 --random-output-len 10 --num-prompts 8 --max-concurrency 4"
MODEL = f"--model-config {Path(__file__).parents[1] / 'data' / 'configs' / 'qwen3-8b.json'}"
TEN = "--random-input-len 5 --random-output-len 10 --num-prompts 8 --max-concurrency 4"
METERED = "--random-input-len 5 --random-output-len 5 --num-prompts 8 --max-concurrency 4"
Ran = tuple[int, dict[str, Any], str]  # its exit code, what the result holds under our name, the report
SHORT = "--random-input-len 8 --random-output-len 20 --num-prompts 8 --max-concurrency 4"
HANGING = "--random-input-len 5 --random-output-len 3 --num-prompts 20 --max-concurrency 4"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of its own, a machine that nothing holds back, and /metrics looked at sooner and more often."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(throttling, "snapshot", throttling.HostState)
    for name, value in (("_FIRST_S", 0.1), ("_EVERY_S", 0.2), ("SAMPLING_SHARE", 1.0), ("_IDLE_S", 2.0)):
        monkeypatch.setattr(scraper, name, value)


@pytest.fixture(autouse=True)
def _no_process_left() -> Iterator[None]:
    yield
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


PROVOCATIONS = {
    "answers that end early": Provocation(
        engine("--early-eos", "1"),
        f"""{FOUR} --extra-body '{{"ignore_eos": false}}'""",
        {"answer-lengths"},
    ),
    "answers that may end early": Provocation(
        engine("--early-eos", "1"), f"{FOUR} --no-ignore-eos", {"early-ends"}
    ),
    "messages of several tokens, and no usage": Provocation(
        made.uncounted, FOUR, {"tokens-not-counted", "thin-percentiles"}
    ),
    "another prompt than was planned": Provocation(
        engine(), FOUR, {"prompt-lengths"}, played=made.another_prompt
    ),
    "few prompts that there are": Provocation(
        engine(),
        "--random-input-len 1 --vocab-size 5 --random-output-len 5 --num-prompts 16 --max-concurrency 4",
        {"identical-prompts"},
    ),
    "low load after high load, by the server's counters": Provocation(
        engine(),
        f"{made.SAME_PROMPTS} {made.LOW}",
        {"prefix-cache"},
        beside=made.high_load_before,
    ),
    "low load after high load, by usage": Provocation(
        engine("--enable-prompt-tokens-details"),
        f"{made.SAME_PROMPTS} {made.LOW} --no-observe",
        {"prefix-cache"},
        beside=made.high_load_before,
    ),
    "a rate that one at a time cannot have": Provocation(
        null(ttft_ms=50),
        "--random-input-len 8 --random-output-len 2 --num-prompts 12 --max-concurrency 1 --request-rate 100",
        {"sends-late", "rate-not-reached"},
    ),
    "a rate above the server's": Provocation(
        engine("--max-num-seqs", "8"),
        "--random-input-len 8 --random-output-len 4 --num-prompts 180 --request-rate 200 --burstiness inf",
        {"overload"},
        may=frozenset({"queued", "sends-late"}),
    ),
    "a server that runs two of six": Provocation(
        engine("--max-num-seqs", "2"),
        "--random-input-len 64 --random-output-len 10 --num-prompts 18 --max-concurrency 6",
        {"server-limit", "few-per-slot"},
    ),
    "a KV cache that is too small": Provocation(
        engine("--preempt", "--kv-cache-tokens", "270", "--no-enable-prefix-caching"),
        "--random-input-len 32 --random-output-len 30 --random-range-ratio 0.8 --num-prompts 24 "
        "--max-concurrency 8 --seed 1",
        {"preemptions", "queued", "ramp-and-drain"},
    ),
    "another client": Provocation(
        engine(), FOUR, {"foreign-requests", "latencies-differ"}, beside=made.another_client
    ),
    "a cold server": Provocation(
        engine("--cold-ms", "50", "--cold-steps", "10"),
        f"{FOUR} --num-prompts 16",
        {"first-wave"},
    ),
    "a server that tires": Provocation(
        engine("--slowdown-per-s", "1"),
        "--random-input-len 64 --random-output-len 4 --num-prompts 48 --max-concurrency 4",
        {"tpot-trend", "throughput-trend"},
    ),
    "four messages a write": Provocation(
        null("--messages-per-write", "4", interval_ms=80),
        "--random-input-len 8 --random-output-len 16 --num-prompts 8 --max-concurrency 4",
        {"arrivals-not-tokens"},
    ),
    "two messages a write, after the first": Provocation(
        made.answering(token(), *[token() * 2] * 4, token("z", "length") + usage(10)),
        TEN,
        {"messages-together"},
    ),
    "ten of twenty tokens, and no word to place them": Provocation(
        made.answering(*made.ten("a"), usage(20)),
        f"{TEN} --random-output-len 20",
        {"tokens-not-located"},
    ),
    "ten of twenty tokens, each a word": Provocation(
        made.answering(*made.ten(" a"), usage(20)),
        f"{TEN} --random-output-len 20",
        {"arrivals-not-tokens"},
    ),
    "reasoning that the total alone counts": Provocation(
        made.answering(*made.ten("a"), usage(10).replace(b"}}", b',"total_tokens":95}}')),
        TEN,
        {"hidden-tokens"},
    ),
    "no finish reasons": Provocation(
        made.answering(*made.ten("a", None), usage(10)), TEN, {"ends-not-reported"}
    ),
    "answers that end within their reasoning": Provocation(
        made.answering(*[each.replace(b'"text"', b'"reasoning"') for each in made.ten("a")], usage(10)),
        TEN,
        {"reasoning-alone"},
    ),
    "a client without kernel stamps": Provocation(engine(), f"{FOUR} --transport httpx", {"unstamped"}),
    "a client without kernel stamps, and busy": Provocation(
        null(),
        "--random-input-len 8 --random-output-len 30 --num-prompts 200 --max-concurrency 200 "
        "--transport httpx",
        {"client-busy", "unstamped"},
        may=frozenset({"reads-late"}),
        played=made.a_share_of_a_core,
    ),
    "a client that hardly runs": Provocation(
        null(),
        f"{SHORT} --transport wire",
        {"reads-late", "busy-loop"},
        may=frozenset({"concurrency-not-held"}),
        beside=made.stalled,
    ),
    "a client that stalls now and then": Provocation(
        null(),
        f"{SHORT} --transport wire",
        {"reads-late"},
        may=frozenset({"concurrency-not-held"}),
        beside=made.stalled_now_and_then,
    ),
    "prompts that take longer to build than to answer": Provocation(
        null(ttft_ms=1, interval_ms=1),
        "--random-input-len 64 --random-output-len 1 --num-prompts 24 --max-concurrency 4",
        {"late-bodies", "concurrency-not-held"},
        played=made.slow_drawing,
    ),
    "a clock that steps and a processor that throttles": Provocation(
        null(),
        SHORT,
        {"clock-stepped", "throttled"},
        played=made.a_bad_machine,
    ),
    "a machine whose CPUs others take": Provocation(
        null(), SHORT, {"other-processes"}, played=made.with_strangers
    ),
    "a model that its memory cannot deliver": Provocation(
        engine(), f"{FOUR} {MODEL} --bandwidth 400", {"beyond-roofline"}
    ),
    "a model that its memory could deliver four times as fast": Provocation(
        engine(), f"{FOUR} {MODEL} --bandwidth 3000", {"slow-kernel"}
    ),
    "a ring without room for all connections": Provocation(
        null(), f"{FOUR} --transport ring", {"ring-incomplete"}, played=made.scattered
    ),
    "a load near the client's capacity": Provocation(null(), FOUR, {"headroom"}, capacity_per_s=250),
    "a load beyond the client's capacity": Provocation(null(), FOUR, {"beyond-capacity"}, capacity_per_s=50),
    "half of the requests fail": Provocation(failing(2), METERED, {"many-failures"}),
    "one of twenty requests fails": Provocation(failing(20), f"{METERED} --num-prompts 20", {"failures"}),
    "Ctrl-C": Provocation(made.hanging, HANGING, {"interrupted"}, beside=made.interrupted, code=130),
    "a client that dies": Provocation(made.hanging, HANGING, {"cut-short"}, beside=made.killed, code=1),
    "a rule that ends the run": Provocation(
        null(),
        SHORT,
        {"stopped-by-rule"},
        played=made.known(lambda facts: {"stop_rule": "--max-duration 1 s: 2 requests were cut"}),
        may=frozenset({"cut-short"}),
        code=1,
    ),
    "a server that closes one of ten idle connections": Provocation(
        made.closing(10), f"{METERED} --num-prompts 20", {"many-resent"}, may=frozenset({"failures"})
    ),
    "a server that closes one of a hundred and ten": Provocation(
        made.closing(110), f"{METERED} --num-prompts 120", {"resent"}
    ),
    "a client that was suspended": Provocation(
        null(), SHORT, {"client-stopped"}, played=made.of_the_client(stopped_s=5.0)
    ),
    "a server that waited for late acknowledgements": Provocation(
        null(), SHORT, {"acks-late"}, played=made.of_the_client(held_segments=10, segments=100)
    ),
    "a client without kernel stamps that was suspended": Provocation(
        null(),
        f"{SHORT} --transport httpx",
        {"stopped-unstamped", "unstamped"},
        played=made.of_the_client(stopped_s=5.0),
    ),
    "a clock that is set back by an hour": Provocation(
        null(), SHORT, {"clock-unusable"}, played=made.of_the_client(clock_step_ms=-3.6e6)
    ),
    "one answer of many that lies in the past": Provocation(
        null(ttft_ms=1, interval_ms=1),
        "--random-input-len 8 --random-output-len 3 --num-prompts 120 --max-concurrency 4",
        {"impossible-timestamps"},
        played=made.set_back,
        may=frozenset({"reads-late", "messages-together", "concurrency-not-held", "first-wave"}),
    ),
    "a network that loses segments": Provocation(null(), SHORT, {"network-lossy"}, played=made.lossy(4)),
    "a network that lost one": Provocation(
        null(ttft_ms=1, interval_ms=1),
        "--random-input-len 8 --random-output-len 3 --num-prompts 120 --max-concurrency 4",
        {"network-losses"},
        played=made.lossy(120),
        may=frozenset({"reads-late", "messages-together", "concurrency-not-held", "first-wave"}),
    ),
    "a disk that took no journal": Provocation(
        null(),
        SHORT,
        {"journal"},
        played=made.known(lambda facts: {"journal_error": "No space left on device"}),
    ),
    "time for more than there is": Provocation(
        null(),
        "--random-input-len 8 --random-output-len 5 --num-prompts 12 --max-concurrency 4 --duration 60",
        {"ran-out", "few-per-slot"},
    ),
    "a server that restarts": Provocation(
        metered(lambda answers, _: exposed(answers, 5 * answers if answers else 1000)),
        METERED,
        {"counters-reset"},
    ),
    "counters of another server": Provocation(
        metered(lambda answers, _: exposed(answers, 10 * answers)), METERED, {"tokens-far-off"}
    ),
    "counters that are a little off": Provocation(
        metered(lambda answers, _: exposed(answers, 5 * answers + (answers > 0))), METERED, {"tokens-differ"}
    ),
    "another model behind the port, and never at rest": Provocation(
        metered(lambda answers, looks: exposed(answers, 5 * answers) + exposed(0, looks, "other")),
        METERED,
        {"several-models", "unsettled"},
    ),
    **OF_DATA,
    **OF_SCALE,
}


def bench(base_url: str, words: str) -> Ran:
    """Run the command; its exit code, what the result holds under our name, and the report.

    Whoever reads the files later comes to the same verdict.
    """
    code = cli.main(["bench", "--quiet", "--base-url", base_url, *shlex.split(words)])
    directory = max(Path("runs").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    stored = json.loads((directory / RESULT).read_text("utf-8"))
    assert verdict.json(run_directory.load(directory).verdict) == stored["loadgen"]["verdict"]
    return code, stored["loadgen"], (directory / REPORT).read_text("utf-8")


def doubts(ours: dict[str, Any]) -> dict[str, str]:
    """What was found, each with its evidence."""
    return {found["name"]: found["evidence"] for found in ours["verdict"]["doubts"]}


if packet_ring.refusal():
    del PROVOCATIONS["a ring without room for all connections"]


def test_every_doubt_is_provoked_by_a_run() -> None:
    doubts = {doubt.code for doubt in DOUBTS} - ({"ring-incomplete"} if packet_ring.refusal() else set())
    assert doubts == set().union(*(one.found for one in PROVOCATIONS.values()))


def on_a_machine_that_runs(attempt: Callable[[], Ran], may: Set[str]) -> Ran:
    """The first run in which no doubt, but for those that may be, says that the machine stood still."""
    for _ in range(ATTEMPTS):
        ran = attempt()
        if not set(doubts(ran[1])) & STOOD_STILL - may:
            break
    return ran


@pytest.mark.parametrize("name", PROVOCATIONS)
def test_a_run_that_goes_wrong_says_so_and_nothing_else(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = PROVOCATIONS[name]
    may = case.found | case.may | SHORT_RUN | BUSY_MACHINE
    if case.capacity_per_s:
        made.remember(case.capacity_per_s)

    def attempt() -> Ran:
        with monkeypatch.context() as patch, case.server() as base_url, case.beside(base_url):
            case.played(patch)
            if case.also is None:
                return bench(base_url, case.words)
            with case.also() as other:
                return bench(base_url, f"{case.words} --base-url {other}")

    code, ours, report = on_a_machine_that_runs(attempt, may)
    found = doubts(ours)
    assert re.search(rf"\nverdict: (SIMULATED, )?{ours['verdict']['level']}\b", report)
    assert case.found <= set(found), found
    assert set(found) <= may, found
    assert code == case.code


CLOSED = "--random-input-len 64 --random-output-len 5 --num-prompts 320 --max-concurrency 16"
OPEN = "--random-input-len 64 --random-output-len 5 --num-prompts 40 --request-rate 15"


@pytest.mark.parametrize(
    ("words", "percentiles"),
    [(CLOSED, ""), (f"{OPEN} --metric-percentiles 95", "P95 from 40 requests (2 beyond it)")],
    ids=["closed", "open"],
)
def test_a_clean_run_has_no_doubt_though_every_doubt_was_checked(words: str, percentiles: str) -> None:
    made.remember(capacity_per_s=1e6)

    def attempt() -> Ran:
        with engine()() as base_url:
            return bench(base_url, f"{words} --num-warmups wave --strict {MODEL} --bandwidth 900")

    code, ours, report = on_a_machine_that_runs(attempt, set())
    assert set(doubts(ours)) - BUSY_MACHINE == set(), doubts(ours)
    assert f"percentiles: {percentiles}" in report or not percentiles
    assert (ours["verdict"]["not_looked_at"], ours["verdict"]["not_checked"]) == ([], ["repeats"])
    assert (code, ours["verdict"]["level"]) == (0, "VALID")
    assert re.search(r"\nverdict: (SIMULATED, )?VALID \(not checked: repeats\)", report)


def test_high_load_and_low_load_on_a_server_at_rest_are_valid() -> None:
    seeds = count(1)  # prompts that were sent before are in the prefix cache
    with engine(preset="h20/qwen3-8b-bf16")() as base_url:

        def attempt(name: str) -> Ran:
            words = "--random-input-len 128 --random-output-len 8"
            return bench(base_url, f"--profile {name} {words} --seed {next(seeds)}")

        for name in ("high-load", "low-load"):
            _, ours, _ = on_a_machine_that_runs(partial(attempt, name), set())
            assert set(doubts(ours)) <= SHORT_RUN | BUSY_MACHINE | {"queued"}, doubts(ours)
            assert ours["verdict"]["level"] == "VALID"


@pytest.mark.parametrize(
    ("metrics", "trouble"),
    [
        (b"<!doctype html><html></html>", "/metrics is HTML, not Prometheus text"),
        (exposed(8, 40)[:-7], "/metrics is cut off in 'vllm:num_requests_waiting{model_name='"),
        (b"vllm:generation_tokens_total{ 1\n", "/metrics is malformed in 'vllm:generation_tokens_total{ 1'"),
        (b"up 1\n", "/metrics has none of the names of vllm, sglang or llamacpp"),
    ],
    ids=["HTML", "cut off", "malformed", "of somebody else"],
)
def test_broken_metrics_cost_only_the_server_reported_figures(metrics: bytes, trouble: str) -> None:
    with metered(lambda answers, looks: metrics)() as base_url:
        code, ours, report = bench(base_url, METERED)
    assert ours["window"]["trouble"].endswith(trouble)
    assert (code, ours["verdict"]["level"], ours["reconciliation"]) == (0, "VALID", [])
    assert "Successful requests:                     8" in report
    assert "server-reported figures: none: " in report


@pytest.mark.parametrize(
    ("server", "name", "strict", "code"),
    [
        (failing(2), "many-failures", "--strict", 3),
        (failing(2), "many-failures", "", 0),
        (failing(20), "failures", "--strict", 0),
    ],
    ids=["invalid, strict", "invalid", "suspect, strict"],
)
def test_strict_makes_an_exit_code_of_invalid_alone(
    server: made.Server, name: str, strict: str, code: int
) -> None:
    with server() as base_url:
        said, ours, _ = bench(base_url, f"{METERED} --num-prompts 20 {strict}")
    assert (said, name in doubts(ours)) == (code, True)


def test_explain_gives_evidence_condition_and_remedy_later_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with failing(2)() as base_url:
        _, ours, report = bench(base_url, f"{METERED} --explain")
    (directory,) = Path("runs").iterdir()
    capsys.readouterr()
    assert cli.main(["report", str(directory), "--explain"]) == 0
    assert capsys.readouterr().out == report
    said = " ".join(report.split())
    for found in ours["verdict"]["doubts"]:
        assert f"{found['severity']}: {found['name']}: {found['evidence']} condition: " in said
        assert f" condition: {found['condition']} remedy: {found['remedy']}" in said
