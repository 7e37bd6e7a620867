"""Provoked, by role: servers behind a router, with metrics of their own, of which one ends or restarts."""

from __future__ import annotations

from collections.abc import Callable

from builders.made_cases import observed, run
from builders.provocations import Provocation, Server, exposed
from fakes.scripted_server import Answer, Asked, api, stream, whole
from fakes.virtual_network import VirtualServer
from fakes.virtual_run import BASE_URL
from loadgen.server.server_counters import RoleWindow
from loadgen.verdict.evidence import RunEvidence

FIVE = "--random-input-len 5 --random-output-len 5 --num-prompts 80 --max-concurrency 4"
BOTH = f"{FIVE} --metrics-url worker={BASE_URL}/a/metrics --metrics-url worker={BASE_URL}/b/metrics"
Exposition = Callable[[int], bytes | None]  # by how many answers there were of the worker; None: it is gone


def alive(answers: int) -> bytes:
    return exposed(answers, 5 * answers)


def routed(a: Exposition, b: Exposition) -> Server:
    """A router that gives two workers answers in turn: a's metrics are at /a/metrics, b's at /b/metrics."""

    def server() -> VirtualServer:
        begun = list[int]()

        def answer(asked: Asked) -> Answer:
            begun.append(asked.number)
            return stream(5, 0.02)

        plain = api(answer, owner="vllm")

        def script(asked: Asked) -> Answer:
            place = asked.head.split(" ")[1]
            if place in ("/a/metrics", "/b/metrics"):
                worker, turn = (a, 1) if place[1] == "a" else (b, 0)
                body = worker((len(begun) + turn) // 2)
                return Answer([whole(b"", "503 Service Unavailable") if body is None else whole(body)])
            return plain(asked)

        return VirtualServer(script)

    return server


def role_window(name: str = "b:8000", role: str = "worker", **fields: object) -> RoleWindow:
    known = {"role": role, "name": name, "url": f"http://{name}/metrics", "window": observed(samples=())}
    return RoleWindow.model_validate(known | fields)


ROUTED = {
    "one of two workers that ends": Provocation(
        routed(alive, lambda answers: alive(answers) if answers < 20 else None),
        BOTH,
        {"worker-ended", "unsettled"},
    ),
    "one of two workers that restarts": Provocation(
        routed(alive, lambda answers: alive(answers if answers < 20 else answers - 20)),
        BOTH,
        {"worker-ended", "unsettled"},
    ),
    "another client of one of two workers": Provocation(
        routed(alive, lambda answers: alive(answers + 20 * (answers > 0))), BOTH, {"foreign-requests"}
    ),
    "a worker that no --metrics-url names": Provocation(
        routed(alive, alive), BOTH.rpartition(" --metrics-url")[0], {"tokens-far-off"}
    ),
    "two workers that do what was asked": Provocation(routed(alive, alive), BOTH, set()),
}
OF_ROLES: dict[str, tuple[RunEvidence, str]] = {
    "worker-ended": (
        run(role_windows=(role_window("a:8000"), role_window(ended_s=12.34))),
        "worker b:8000 ended by 12.3 s: it did not answer",
    )
}
