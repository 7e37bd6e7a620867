"""Several servers of one model: which may share a run, and that all that is done to one is done to each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest
from msgspec.structs import replace

from builders.loops import loop_over
from builders.required import require
from fakes.scripted_server import Answer, Asked, ScriptedServer, api, closed_port, stream, target_of, whole
from loadgen.base.errors import LoadgenError, MeasureError, UsageError
from loadgen.engines import engines
from loadgen.plan import plan, profile
from loadgen.plan.plan import Plan
from loadgen.plan.request_sources import ModelTarget, Seed
from loadgen.run import server_group, worker_count
from loadgen.run.attach import attach, collect_settings
from loadgen.run.command import keywords
from loadgen.run.command.options import Options, bench_parser, parse
from loadgen.run.firing import TransportOptions
from loadgen.run.observation import Local
from loadgen.run.server_group import Replica, check_alike
from loadgen.run.session import Session
from loadgen.server.control import ServerInfo
from loadgen.server.exchange import ServerAddress
from loadgen.study.series.campaign.arms import Trust
from loadgen.study.series.campaign.campaign_file import make_arguments

# At a rate, each server gets its requests by turns, however fast either answers.
WORKLOAD = profile.build(
    {"input_len": 8, "output_len": 3, "num_prompts": 4, "num_warmups": 2, "request_rate": 100}
)
VLLM, SGLANG = (engines.find_by_name(name) for name in ("vLLM", "SGLang"))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def serving(stack: ExitStack, model: str = "m", version: str = "1", owner: str = "vllm") -> ScriptedServer:
    """A server that has a model, its counters, and a way to empty its cache."""
    known = api(lambda _: stream(), owner=owner)

    def script(asked: Asked) -> Answer:
        place = " ".join(asked.head.split(" ")[:2])
        if place == "POST /reset_prefix_cache":
            return Answer([whole(b"")])
        if place == "GET /metrics":
            text = f"vllm:generation_tokens_total {len(requests(server)) * 3}\n"
            return Answer([whole(text.encode(), kind="text/plain")])
        if place == "GET /version":
            return Answer([whole(b'{"version":"%b"}' % version.encode())])
        if place == "GET /v1/models" and model != "m":
            card = b'{"data":[{"id":"%b","owned_by":"%b"}]}' % (model.encode(), owner.encode())
            return Answer([whole(card)])
        return known(asked)

    server = stack.enter_context(ScriptedServer(script))
    return server


def requests(server: ScriptedServer) -> list[Asked]:
    return [asked for asked in server.asked if asked.head.startswith("POST /v1/completions")]


def attached(stack: ExitStack, *servers: ScriptedServer, more: tuple[str, ...] = ()) -> Session:
    urls = [word for server in servers for word in ("--base-url", server.base_url)]
    options = parse([*urls, "--quiet", "--transport", "wire", *more])
    return attach(options, collect_settings(options, [WORKLOAD]), WORKLOAD, stack)


def planned(most: int) -> Plan:
    """A closed loop of `most` slots."""
    workload = profile.build({"input_len": 8, "output_len": 3, "num_prompts": 9, "max_concurrency": most})
    return plan.make(workload, ModelTarget(engine=VLLM, model="m"), Seed(7, chosen=True))


def replica(host: str = "a", port: int = 1, path: str = "", **served: object) -> Replica:
    info = ServerInfo(**{"engine": VLLM, "version": "1", "model": "m", **served})  # type: ignore[arg-type]
    address = "127.0.0.1" if host == "localhost" else host
    root = replace(target_of(address, port, name=host), path=path)
    return Replica(ServerAddress(f"http://{host}:{port}{path}"), info, root)


@loop_over(
    ("first", "other", "words"),
    [
        (replica("127.0.0.1"), replica("127.0.0.2"), None),
        (replica("127.0.0.1"), replica("localhost"), "the same server"),
        (replica("a"), replica("b"), None),
        (replica("a"), replica("a", 2), None),
        (replica("a"), replica("a", 1, "/second"), None),
        (replica("a"), replica("b", version="2", max_model_len=9), None),
        (replica("a"), replica("a"), "http://a:1 and http://a:1 are the same server"),
        (replica("a"), replica("b", engine=SGLANG), "engine: http://a:1 has vLLM, http://b:1 has SGLang"),
        (replica("a"), replica("b", model="n"), "model: http://a:1 has m, http://b:1 has n; pass --model"),
    ],
)
def test_servers_must_be_different_ones_of_one_kind(
    first: Replica, other: Replica, words: str | None
) -> None:
    with pytest.raises(MeasureError, match=words) if words else nullcontext():
        check_alike(first, other)


def test_the_shortest_context_counts_and_differences_are_noted() -> None:
    first, other = replica(max_model_len=9), replica("b", max_model_len=7, version="2")
    assert server_group.join_served(first.served, [other, replica("c")]).max_model_len == 7
    assert server_group.join_served(replica().served, [replica("b")]).max_model_len == 0


def test_processes_are_known_where_all_servers_are_on_this_machine() -> None:
    here, away = Local(lambda: [1, 2]), replica("b")
    both = server_group.join_locals(here, [replace(away, local=Local(lambda: [3]))])
    assert require(both).pids() == [1, 2, 3]
    assert server_group.join_locals(here, [away]) is None
    assert server_group.join_locals(None, [replace(away, local=here)]) is None


@pytest.mark.whole
def test_each_server_is_warmed_up_emptied_and_counted(stack: ExitStack, tmp_path: Path) -> None:
    servers = serving(stack), serving(stack, version="2")
    more = ("--reset-cache", "--run-dir", str(tmp_path))
    session = attached(stack, *servers, more=more)
    run, _ = session.run(WORKLOAD, Seed(7, chosen=True))
    facts = run.facts
    assert facts.targets == tuple(server.base_url for server in servers)
    assert (facts.warmups, facts.warmup_failures) == (4, 0)
    assert facts.cache_reset == "emptied before the run"
    (note,) = [note for note in facts.notes if "versions" in note]
    assert note.endswith(f"{servers[0].base_url} 1, {servers[1].base_url} 2")
    assert require(facts.window).generation_tokens == 4 * 3
    for server in servers:
        resets = [asked for asked in server.asked if "reset_prefix_cache" in asked.head]
        assert (len(resets), len(requests(server))) == (1, 2 + 2)


def test_a_server_that_is_not_ready_or_alike_is_named(stack: ExitStack) -> None:
    first = serving(stack)
    url = f"http://127.0.0.1:{closed_port()}"
    with pytest.raises(LoadgenError, match=f"{url} is not ready"):
        attached(stack, first, more=("--base-url", url))
    with pytest.raises(MeasureError, match="must serve the same model"):
        attached(stack, first, serving(stack, model="n"))
    with pytest.raises(MeasureError, match="must serve the same engine"):
        attached(stack, first, serving(stack, owner="sglang"))
    other = f"{serving(stack).base_url}/v2"
    with pytest.raises(UsageError, match="its API's path differs from"):
        attached(stack, first, more=("--base-url", other))


@pytest.mark.whole
def test_every_warm_up_of_one_server_failing_names_it(stack: ExitStack, tmp_path: Path) -> None:
    broken = stack.enter_context(
        ScriptedServer(api(lambda _: Answer([whole(b"{}", "500 Internal Server Error")]), owner="vllm"))
    )
    session = attached(stack, serving(stack), broken, more=("--run-dir", str(tmp_path)))
    with pytest.raises(MeasureError, match=f"{broken.base_url}: every warm-up request failed"):
        session.run(WORKLOAD, Seed(7, chosen=True))


@loop_over(("asked", "most", "workers"), [(0, 8, 2), (2, 8, 2), (4, 8, 4), (4, 3, 2), (2, 2, 2)])
def test_each_server_has_as_many_workers(asked: int, most: int, workers: int) -> None:
    targets = target_of("a", 1), target_of("b", 1)
    spread = worker_count.spread_over_workers(
        TransportOptions(targets[0], targets=targets), planned(most), asked
    )
    assert spread.workers == workers
    assert [spread.choose_target(process).host for process in range(4)] == ["a", "b", "a", "b"]


def test_a_load_of_one_request_at_once_is_none_for_two_servers() -> None:
    targets = target_of("a", 1), target_of("b", 1)
    with pytest.raises(UsageError, match="2 --base-url need 2 requests at once or more"):
        worker_count.spread_over_workers(TransportOptions(targets[0], targets=targets), planned(1), 2)


def test_a_call_and_a_campaign_name_several_servers_in_a_list() -> None:
    urls = ["http://a", "http://b"]
    assert keywords.parse_call(urls, None, {})[0].urls == tuple(urls)
    line = make_arguments({"base_url": urls, "model": "m"}, bench_parser())
    assert parse(line).urls == tuple(urls)
    assert parse(make_arguments({"base_url": "http://a"}, bench_parser())).urls == ("http://a",)
    for wrong in ([], [1], 1):
        with pytest.raises(UsageError, match="base_url: "):
            keywords.parse_call(wrong, None, {})  # type: ignore[arg-type]


def test_a_key_is_not_given_to_a_second_host_that_a_file_names() -> None:
    here, away = "http://127.0.0.1:8000", "http://elsewhere"
    assert Trust().may_get_key(Options(base_url=here))
    assert not Trust().may_get_key(Options(base_url=here, more_urls=(away,)))
