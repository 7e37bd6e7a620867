"""A router in front of engines: it passes each request on to one of them, and its answer as it comes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

_LIMIT_S = 60.0
_PASSED_ON = ("content-type", "authorization")
_METRICS = "/router/metrics"


class Router:
    """Listens at a free port inside `with`; its own metrics are worded as sglang-router's.

    `weights` has how many requests in a row go to each worker of a round; 1 each by default. A worker that
    cannot be reached, or that ends in an answer, gets no more requests: the client's connection is closed
    where a response had begun, else the next worker is asked. Without one the response is a 503, at a hidden
    path a 404.
    """

    def __init__(
        self, workers: Sequence[str], weights: Sequence[int] = (), hidden: Sequence[str] = ()
    ) -> None:
        self.workers, self.hidden = list(workers), hidden
        counts = zip(self.workers, weights or [1] * len(self.workers), strict=True)
        self.turns = [worker for worker, times in counts for _ in range(times)]
        self.sent: Counter[str] = Counter()  # POST requests by worker, those that failed included
        self.active: Counter[str] = Counter()
        self.outcomes: Counter[tuple[str, str]] = Counter()  # by worker, and success or failure
        self.requests: Counter[str] = Counter()  # by path
        self.healthy = dict.fromkeys(self.workers, True)
        self.lock, self.turn = threading.Lock(), 0
        self.client = httpx.Client(trust_env=False, timeout=_LIMIT_S)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._make_handler())
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.base_url = f"http://127.0.0.1:{self.server.server_port}"
        self.metrics_url = self.base_url + _METRICS

    def __enter__(self) -> Router:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
        self.client.close()

    def exposition(self) -> str:
        """The counters as sglang-router words them."""
        route = 'router_type="http",backend_type="regular",connection_mode="http",model="m"'
        families: dict[str, tuple[str, Mapping[str, int]]] = {
            "smg_router_requests_total": (
                "counter",
                {
                    f'{route},endpoint="{path.removeprefix("/v1/").split("/")[0]}"': n
                    for path, n in self.requests.items()
                },
            ),
            "smg_worker_cb_outcomes_total": (
                "counter",
                {f'worker="{worker}",outcome="{how}"': n for (worker, how), n in self.outcomes.items()},
            ),
            "smg_worker_requests_active": ("gauge", {f'worker="{w}"': self.active[w] for w in self.workers}),
            "smg_worker_health": ("gauge", {f'worker="{w}"': int(ok) for w, ok in self.healthy.items()}),
        }
        lines = []
        for name, (kind, samples) in families.items():
            lines += [f"# TYPE {name} {kind}", *(f"{name}{{{labels}}} {n}" for labels, n in samples.items())]
        return "\n".join(lines) + "\n"

    def take_turn(self, path: str, counted: bool) -> list[str]:
        """The healthy workers, from the one whose turn it is on; a control request takes no turn."""
        with self.lock:
            at = self.turn % len(self.turns)
            if counted:
                self.turn += 1
                self.requests[path] += 1
        return [worker for worker in dict.fromkeys(self.turns[at:] + self.turns[:at]) if self.healthy[worker]]

    def count(self, worker: str, outcome: str = "") -> None:
        """Count a POST that goes to a worker, and how it ended."""
        with self.lock:
            self.sent[worker] += not outcome
            self.active[worker] += -1 if outcome else 1
            if outcome:
                self.outcomes[worker, outcome] += 1

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        router = self

        class Passing(BaseHTTPRequestHandler):
            begun = False

            def do_GET(self) -> None:
                if self.path == _METRICS:
                    self.begin(200, "text/plain; version=0.0.4")
                    self.wfile.write(router.exposition().encode())
                else:
                    self.pass_on(b"", counted=False)

            def do_POST(self) -> None:
                self.pass_on(self.rfile.read(int(self.headers["content-length"] or 0)), counted=True)

            def begin(self, status: int, kind: str) -> None:
                self.begun = True
                self.send_response(status)
                self.send_header("content-type", kind)
                self.end_headers()

            def pass_on(self, body: bytes, counted: bool) -> None:
                if self.path in router.hidden:
                    self.send_error(404)
                    return
                for worker in router.take_turn(self.path, counted):
                    if counted:
                        router.count(worker)
                    router.healthy[worker] = ended = self.forward(worker, body)
                    if counted:
                        router.count(worker, "success" if ended else "failure")
                    if self.begun:
                        return
                self.send_error(503)

            def forward(self, worker: str, body: bytes) -> bool:
                """Whether the worker answered, and to the end."""
                headers = {name: self.headers[name] for name in _PASSED_ON if name in self.headers}
                url = worker + self.path
                try:
                    with router.client.stream(self.command, url, content=body, headers=headers) as answer:
                        self.begin(answer.status_code, answer.headers.get("content-type", "text/plain"))
                        for piece in answer.iter_raw():
                            self.wfile.write(piece)
                            self.wfile.flush()
                except httpx.HTTPError:
                    return False
                return True

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Passing
