"""The router of the tests before two embedded engines: what it counts is what they did."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from fakes.router import Router
from loadgen_servers.process.embedded import Embedded

pytestmark = pytest.mark.whole

_BODY = {"model": "instant", "prompt": "a b c", "max_tokens": 5, "stream": True, "ignore_eos": True}
_DONE = "vllm:request_success_total"


@pytest.fixture
def engines() -> Iterator[list[tuple[Embedded, str]]]:
    with ExitStack() as stack:
        made = [stack.enter_context(Embedded(["--preset", "instant"])) for _ in range(2)]
        yield [(engine, engine.start().base_url) for engine in made]


def _post(url: str, client: httpx.Client) -> httpx.Response:
    return client.post(f"{url}/v1/completions", json=_BODY)


def _finished(url: str) -> float:
    text = httpx.get(f"{url}/metrics").text
    return sum(float(n) for n in re.findall(rf"^{_DONE}{{.*?}} (\S+)$", text, re.M))


def test_each_worker_gets_its_weight_of_the_requests(engines: list[tuple[Embedded, str]]) -> None:
    urls = [url for _, url in engines]
    with Router(urls, weights=[3, 1]) as router, httpx.Client() as client:
        answers = {_post(router.base_url, client).content for _ in range(8)}
        counts = httpx.get(router.metrics_url).text
        assert answers == {_post(url, client).content for url in urls}  # byte for byte
    assert [_finished(url) for url in urls] == [7, 3]  # one each not through the router
    assert f'smg_worker_cb_outcomes_total{{worker="{urls[0]}",outcome="success"}} 6' in counts
    assert re.search(r'^smg_router_requests_total{.*endpoint="completions"} 8$', counts, re.M)


def test_a_worker_that_ended_gets_no_more_requests(engines: list[tuple[Embedded, str]]) -> None:
    urls = [url for _, url in engines]
    with Router(urls) as router, httpx.Client() as client:
        _post(router.base_url, client)
        engines[0][0].stop()
        assert [_post(router.base_url, client).status_code for _ in range(3)] == [200] * 3
        assert _finished(urls[1]) == router.sent[urls[1]] == 3
        counts = router.exposition()
        assert f'smg_worker_health{{worker="{urls[0]}"}} 0' in counts
        engines[1][0].stop()
        assert _post(router.base_url, client).status_code == 503
