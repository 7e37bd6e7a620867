"""The HTML report as a file: everything in it, nothing from outside, nothing a name could do."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import made_data, made_runs
from builders.browsing import EVIL
from loadgen.base.structs import replace
from loadgen.facts.run_facts import Server
from loadgen.plan import profile
from loadgen.report.load_identity import Load
from loadgen.report.run_directory import Result
from loadgen.report.run_writer import encode_run
from loadgen.study.compare.model import Decision
from loadgen.study.pages import run_charts
from loadgen.study.pages.document import MOST_DRAWN, compose_document, render_page
from loadgen.study.run_summary import FailedCell, Reported, summarise_run

pytestmark = pytest.mark.long  # whole pages, with pictures

pytest.importorskip("jinja2")

VOID = {"meta", "link", "br"}


class Parts(HTMLParser):
    """Elements, attributes and whether each is closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def campaign(cells: int, requests: int = 40, tokens: int = 64) -> str:
    """A page of so many cells: two checkpoints, the second failing once."""
    runs = [
        made_runs.reported(
            made_runs.run(requests, tokens, 8, 1.0 + number % 2, seed=number, model=f"org/m{number % 2}",
                          cell=made_runs.cell(f"org/m{number % 2}", number // 2))
        )
        for number in range(cells)
    ]  # fmt: skip
    found = made_runs.comparison(
        made_runs.line("org/m0", tuple(runs[0::2])),
        made_runs.line("org/m1", tuple(runs[1::2]), Decision.FASTER),
    )
    failed = FailedCell(cell=made_runs.cell("org/m1", 99), reason="out of memory")
    return str(render_page(compose_document(runs, [found], [failed], ["x.json: cut in the middle"])))


def single(**changes: Any) -> tuple[str, dict[str, Any]]:
    """A page of one run, and its result as it stands on disk."""
    run = made_runs.run(**changes)
    return single_page(run), json.loads(json.dumps(encode_run(run)))


def single_page(run: Result) -> str:
    return str(render_page(compose_document([made_runs.reported(run)])))


def shown(page: str) -> list[tuple[str, str]]:
    """Each number's place in the JSON and its value."""
    return re.findall(r'data-key="([^"]+)" data-value="([^"]+)"', page)


def looked_up(result: dict[str, Any], key: str) -> Any:
    found: Any = result
    if key in result:
        return result[key]
    before, percentiles, rank = key.partition("percentiles_ms.")  # a rank may have a point
    for part in [*f"{before}{percentiles}".strip(".").split("."), *filter(None, [rank])]:
        found = found[int(part)] if isinstance(found, list) else found[part]
    return found


def test_where_answers_part_stands_in_the_row() -> None:
    run, words = made_runs.reported(made_runs.run()), "first differs from a after 3 of 48"
    parted = replace(made_runs.line("b", (run,), Decision.SLOWER), answers=words)
    found = made_runs.comparison(made_runs.line("a", (run,)), parted)
    assert render_page(compose_document([run], [found])).count(f"outputs: {words}") == 1


def test_every_number_of_a_run_is_that_of_its_json() -> None:
    page, result = single(failed=1)
    numbers = shown(page)
    assert len(numbers) > 60
    assert {key: value for key, value in numbers if repr(looked_up(result, key)) != value} == {}
    for key, value, text in re.findall(r'data-key="([^"]+)" data-value="([^"]+)">([\d.,]+)<', page):
        if "peak_bytes" not in key:
            near = pytest.approx(float(value), abs=0.51 if "," in text else 0.051)
            assert float(text.replace(",", "")) == near, key
    keys = {"loadgen.metrics.ttft.percentiles_ms.99", "output_throughput", "failed"}
    assert keys <= {key for key, _ in numbers}


def test_every_number_of_a_comparison_is_that_of_the_comparison() -> None:
    run = made_runs.reported(made_runs.run())
    lines = (made_runs.line("a", (run,)), made_runs.line("b", (run,), Decision.SLOWER, roofline=0.123456789))
    found = made_runs.comparison(*lines)
    page = render_page(compose_document([run, run], [found]))
    compared = page[page.index('<section id="load-1">') :].partition("</section>")[0]
    expected = [(f"{key}.mean", repr(one.mean)) for line in lines for key, one in line.summaries.items()]
    expected += [(f"{key}.ratio", repr(one.ratio)) for line in lines for key, one in line.effects.items()]
    expected += [("roofline", repr(line.roofline)) for line in lines if line.roofline]
    assert sorted(shown(compared)) == sorted(expected)


@pytest.mark.parametrize("make", [lambda: single()[0], lambda: campaign(4)], ids=["one run", "a campaign"])
def test_a_page_is_whole_and_asks_nobody_for_anything(make: Any) -> None:
    page = make()
    parts = Parts(page)
    assert parts.open == []
    assert page.startswith("<!doctype html>")
    reached = [
        value
        for tag, name, value in parts.attributes
        if name in ("src", "href", "xlink:href", "action", "data") and not value.startswith(("#", "data:"))
    ]
    assert reached == []
    style = "".join(re.findall(r"<style>(.*?)</style>", page, re.DOTALL))
    assert "@import" not in style
    assert "url(" not in style
    assert not {"img", "iframe", "object", "embed", "base"} & set(parts.tags)
    assert parts.tags.count("script") == 1
    ids = [value for _, name, value in parts.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    anchors = {value[1:] for tag, name, value in parts.attributes if tag == "a" and name == "href"}
    assert anchors <= set(ids)


def test_a_name_that_is_a_script_does_nothing() -> None:
    run = made_runs.run(
        model=EVIL, command=["loadgen", "bench", "--model", EVIL], environment={EVIL: EVIL}, label=EVIL,
        notes=(EVIL,), cut_short=EVIL,
    )  # fmt: skip
    ours = made_runs.reported(run, EVIL, engine=EVIL, machine=EVIL, source=EVIL, remarks=(EVIL,))
    theirs = Reported(EVIL, {"output_throughput": 3.0, EVIL: EVIL}, Load(name=EVIL), EVIL, engine=EVIL)
    found = made_runs.comparison(
        made_runs.line(EVIL, (ours,)),
        made_runs.line(EVIL + "2", (ours,), Decision.UNDECIDED, marks=(EVIL,), failures=(EVIL,)),
    )
    failed = FailedCell(cell=made_runs.cell(EVIL, 0), reason=EVIL)
    page = render_page(compose_document([ours, theirs], [found], [failed], [EVIL]))
    parts = Parts(page)
    assert parts.open == []
    assert parts.tags.count("script") == 1
    assert "49" not in re.findall(r"&amp;(\d+)", page)
    assert not [name for _, name, _ in parts.attributes if name.startswith("on")]


def test_the_script_is_the_only_one_that_may_run() -> None:
    import base64
    import hashlib

    page, _ = single()
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "default-src 'none'" in page


def test_a_campaign_of_32_cells_is_at_most_three_megabytes() -> None:
    page = campaign(32, requests=300, tokens=128)
    assert len(page.encode()) <= 3_000_000
    assert page.count('<figure id="run-') == 32 * 10


def test_of_many_runs_each_row_s_first_are_drawn_and_the_rest_say_so() -> None:
    page = campaign(MOST_DRAWN + 4, requests=4, tokens=4)
    drawn = set(re.findall(r'<figure id="(run-\d+)-', page))
    first = (*range(1, 17), *range(19, 35))  # of 18 runs a row, row by row
    assert drawn == {f"run-{number}" for number in first}
    assert page.count("Not plotted on a page with this many runs") == 4


def test_what_failed_and_what_could_not_be_read_is_on_it() -> None:
    page = campaign(2)
    said = "out of memory", "x.json: cut in the middle", "org/m1 on vllm", "repeat 100", "the campaign"
    assert [words for words in said if words not in page] == []
    failed = FailedCell(cell=made_runs.cell("m", 0), reason="no server")
    page = str(render_page(compose_document([], [], [failed], [])))  # without a single run
    assert "no server" in page
    assert Parts(page).open == []


URL, ENGINE = "http://h/v1/completions", "loadgen engine"
SIMULATED = Server(url=URL, engine=ENGINE, model="Qwen/Qwen3-8B-FP8", simulated="h20/qwen3-8b-fp8")


def heading(page: str) -> tuple[str, str, list[str]]:
    """The page's title, its heading, and what stands above everything."""
    title, h1 = re.search("<title>(.*?)</title>", page), re.search("<h1>(.*?)</h1>", page)
    assert title is not None
    assert h1 is not None
    return title[1], h1[1], re.findall('<p class="banner">(.*?)</p>', page)


def test_what_was_sent_stands_under_the_cards_of_a_file() -> None:
    traced = made_runs.run(
        profile=profile.build({"trace": "t.jsonl", "max_concurrency": None}), data=made_data.trace(25.0)
    )
    page = str(render_page(compose_document([summarise_run(Path("r"), traced)])))
    assert heading(page)[1] == "m, trace trace.jsonl, 25 requests/s"
    lines = dict(re.findall(r"<div><dt>(\w+)</dt><dd>([^<]*)</dd></div>", page))
    assert lines["schedule"] == "mooncake, the whole trace, 320 requests in 12.8 s; 25 requests/s on average"
    assert lines["lengths"] == "prompts 100 tokens each; outputs 11 tokens each"
    assert page.count("What was sent") == 2
    assert "What was sent" not in single_page(made_runs.run())


def test_simulated_stands_in_the_title_and_above_everything() -> None:
    title, says = "Qwen3-8B-FP8, concurrency 8", "the embedded engine answered, with the timing of"
    banner = f"<strong>SIMULATED:</strong> {says} h20/qwen3-8b-fp8; no model ran"
    page, _ = single(concurrency=8, server=SIMULATED)
    assert heading(page) == (f"{title} (SIMULATED) – loadgen", f"{title} (SIMULATED)", [banner])
    assert page.index('class="banner"') < page.index("<header>")
    page, _ = single(concurrency=8, model="Qwen/Qwen3-8B-FP8")
    assert heading(page) == (f"{title} – loadgen", title, [])
    runs = [made_runs.reported(made_runs.run(seed=1)), made_runs.reported(made_runs.run(server=SIMULATED))]
    page = str(render_page(compose_document(runs)))
    title, _, (banner,) = heading(page)
    assert title.endswith("(partly SIMULATED) – loadgen")
    assert "1 of 2 runs" in banner
    assert page.count('<span class="badge simulated">SIMULATED</span>') == 1


def test_latencies_have_their_percentiles_whichever_were_requested() -> None:
    run = made_runs.run(requests=320, tokens=4)
    asked = run.facts.profile.model_copy(update={"metric_percentiles": "99.9"})
    run = replace(run, facts=replace(run.facts, profile=asked))
    (row,) = re.findall('<th scope="row">TTFT</th>(.*?)</tr>', single_page(run))
    values = np.percentile(run_charts.select_latencies_ms(run, "ttft"), (50, 90, 95, 99, 99.9))
    shown_ms = [float(value) for value in re.findall(r'data-value="([^"]+)"', row)]
    assert shown_ms[4:-1] == pytest.approx(values.tolist(), rel=1e-9)
    assert re.findall(r'data-key="([^"]+)"', row)[4:] == [
        "loadgen.metrics.ttft.median_ms",
        "loadgen.metrics.ttft.percentiles_ms.99.9",
        "loadgen.metrics.ttft.max_ms",
    ]
