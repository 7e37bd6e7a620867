"""--metrics-url: what is taken, what is refused and why, and how the servers are named."""

from __future__ import annotations

import pytest

from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.features.routed.metrics_urls import parse_metrics_urls
from loadgen.run.command import keywords
from loadgen.run.command.bench import check_command
from loadgen.run.command.options import bench_parser, parse
from loadgen.study.series.campaign.campaign_file import make_arguments

A, B = "worker=http://a:8000", "worker=http://b:8000"


@loop_over(
    ("texts", "names", "paths"),
    [
        ([A, "router=http://r:29000/metrics"], ["a:8000", "r:29000"], ["", "/metrics"]),
        (["prefill=http://10.0.0.1", "decode=https://10.0.0.2"], ["10.0.0.1:80", "10.0.0.2:443"], ["", ""]),
        (["worker=http://d-0.vllm.svc:8000/"], ["d-0:8000"], [""]),
        (["worker=http://d-0.x:1", "worker=http://d-0.y:1"], ["d-0.x:1", "d-0.y:1"], ["", ""]),
        (
            ["worker=http://a:1/x/metrics", "worker=http://a:1/y/metrics?z=1"],
            ["a:1#1", "a:1#2"],
            ["/x/metrics", "/y/metrics?z=1"],
        ),
        ([" worker=http://[::1]:8000 "], ["[::1]:8000"], [""]),
    ],
)
def test_each_has_a_role_a_short_name_and_its_own_path(
    texts: list[str], names: list[str], paths: list[str]
) -> None:
    places = parse_metrics_urls(texts)
    assert [place.name for place in places] == names
    assert [place.path for place in places] == paths
    assert [place.role for place in places] == [text.strip().partition("=")[0] for text in texts]


@loop_over(
    ("line", "message"),
    [
        ("http://a", "no role is named: write ROLE=URL, as decode="),
        ("a", "no role is named"),
        ("encode=http://a", "'encode' is no role: write ROLE=URL.* with router, prefill, decode or worker"),
        ("worker=a:8000", "worker='a:8000': not a URL: write it like"),
        ("worker=http://a:0", "not a URL"),
        ("worker=http://a:x", "not a URL"),
        ("worker=ftp://a", "not a URL"),
        ("worker=http://u:secret@a", r"holds credentials \(not shown\)"),
        ("worker=http://a/é", "percent-encode it"),
        (f"{A} --metrics-url {A}/", "worker=http://a:8000: this URL is given twice"),
        (
            f"{A} --metrics-url decode=http://a:8000",
            "decode=http://a:8000: this URL is given twice|given twice",
        ),
        (f"{A} --base-url http://b", "several --base-url are scraped already: leave one of them out"),
        (f"{A} --no-observe", "--no-observe scrapes nothing"),
    ],
)
def test_what_cannot_be_scraped_is_refused(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"^--metrics-url.*{message}") as refused:
        check_command(parse(["--base-url", "http://router", "--metrics-url", *line.split()]))
    assert "secret" not in str(refused.value)


def test_a_call_and_a_campaign_name_them_in_a_list() -> None:
    options, _ = keywords.parse_call("http://router", None, {"metrics_url": [A, B]})
    assert options.metrics_url == (A, B)
    line = make_arguments({"base_url": "http://router", "metrics_url": [A, B]}, bench_parser())
    assert parse(line).metrics_url == (A, B)
    with pytest.raises(UsageError, match="metrics_url"):
        keywords.parse_call("http://router", None, {"metrics_url": 1})
