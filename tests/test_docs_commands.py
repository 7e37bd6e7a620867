"""The docs: every command line and every profile they print is one that the command takes."""

from __future__ import annotations

import argparse
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from doc_tables import remove_tables

from builders.switchers import FLAGS_OF
from loadgen.base.errors import UsageError
from loadgen.cli import DATA_VERBS, VERBS, main
from loadgen.features.attribution.explain_command import explain_parser
from loadgen.features.data.data_command import data_parser
from loadgen.features.export.export_command import export_parser
from loadgen.features.selftest.selftest_command import selftest_parser
from loadgen.features.shards.merge import merge_parser
from loadgen.features.traces.learn.learn_command import learn_parser
from loadgen.fleet.shards_command import shards_parser
from loadgen.plan import profile
from loadgen.run.command.options import bench_parser, join_flag_lines
from loadgen.study.audit.audit_command import audit_parser
from loadgen.study.bundle_command import bundle_parser
from loadgen.study.compare_command import compare_parser
from loadgen.study.describe_command import describe_parser
from loadgen.study.gate.gate_command import gate_parser
from loadgen.study.history.history_command import history_parser
from loadgen.study.pages.report_command import report_parser
from loadgen.study.quality.quality_command import quality_parser
from loadgen.study.series.campaign import arms, campaign_file
from loadgen.study.series.campaign.campaign_command import campaign_parser
from loadgen.study.series.ladder_command import ladder_parser
from loadgen.study.series.limit.limit_command import limit_parser
from loadgen.study.series.sweep_command import sweep_parser
from loadgen.study.verify.verify_command import verify_parser
from loadgen_servers.engine.cli import parser as engine_parser

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("skills/*/*.md"))]
PARSERS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "bench": bench_parser, "history": history_parser, "ladder": ladder_parser, "selftest": selftest_parser,
    "engine": engine_parser, "audit": audit_parser, "report": report_parser, "compare": compare_parser,
    "campaign": campaign_parser, "gate": gate_parser, "sweep": sweep_parser, "data": lambda: data_parser({}),
    "data describe": describe_parser, "data learn": learn_parser, "explain": explain_parser,
    "export": export_parser, "shards": shards_parser, "merge": merge_parser, "limit": limit_parser,
    "quality": quality_parser, "bundle": bundle_parser, "verify": verify_parser,
}  # fmt: skip
FLAGS = {"profiles": set[str]()}  # verbs without a parser

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*(?:\S*/)?loadgen ([a-z].*)")


def commands(text: str) -> Iterator[str]:
    """What stands after `loadgen`, in code blocks and between backticks."""
    for _, block in _FENCED.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            yield from _found(re.split(r" && | \| ", line))
    yield from _found(" ".join(span.split()) for span in re.findall(r"`([^`]+)`", _FENCED.sub("", text)))


def _found(places: Iterable[str]) -> Iterator[str]:
    for place in places:
        line = place.strip().removesuffix(" &").replace("$start", "+9")  # as a shell reads them
        if found := _COMMAND.fullmatch(line):
            yield found[1]


def refused(command: str) -> str:
    """What is wrong with a command; "" where nothing is. Words of prose behind it are let be."""
    verb, *rest = shlex.split(command)
    if verb == "data" and rest and rest[0] in DATA_VERBS:
        verb, rest = f"data {rest[0]}", rest[1:]
    elif verb not in VERBS:
        return f"no command {verb}"
    if verb == "shards" and "--" in rest:
        own, flags = rest[: rest.index("--")], rest[rest.index("--") + 1 :]
        return refused(shlex.join([verb, *own])) or refused(shlex.join(["bench", *flags]))
    words, parser = join_flag_lines(rest), PARSERS[verb]() if verb in PARSERS else None
    known = FLAGS.get(verb, set())
    if parser is not None:
        known = {flag for action in parser._actions for flag in action.option_strings}
    named = {word.strip("[]").partition("=")[0] for word in words if word.lstrip("[").startswith("--")}
    if unknown := named - known - {"--help"}:
        return f"no flag {', '.join(sorted(unknown))}"
    if parser is not None and not any(
        word.startswith("[") or word in ("--help", "--help-all") for word in words
    ):
        try:
            parser.parse_known_args(words)
        except UsageError as error:
            # Prose names a verb, or a flag of it, without the places that it would be given.
            return "" if "arguments are required" in str(error) else str(error)
    return ""


def named(pages: list[Path]) -> list[object]:
    return [pytest.param(page, id=page.name) for page in pages]


@pytest.mark.parametrize("page", named(PAGES))
def test_every_command_line_is_one_that_the_command_takes(page: Path) -> None:
    prose = remove_tables(page.read_text("utf-8"))
    wrong = {command: why for command in commands(prose) if (why := refused(command))}
    assert wrong == {}


@pytest.mark.parametrize("name", [
    "README.md", "servers.md", "hosted.md", "ladder.md", "jetson.md", "spark.md", "recipes.md",
    "comparing.md", "audit.md", "report.md",
])  # fmt: skip
def test_the_pages_that_show_how_have_command_lines(name: str) -> None:
    (page,) = (page for page in PAGES if page.name == name)
    assert list(commands(page.read_text("utf-8")))


@pytest.mark.parametrize("page", named(PAGES))
def test_every_profile_and_every_campaign_is_one(page: Path, tmp_path: Path) -> None:
    for language, block in _FENCED.findall(page.read_text("utf-8")):
        if language == "toml" and re.search(r"^(\[\[)?checkpoints", block, re.MULTILINE):
            (tmp_path / "campaign.toml").write_text(block, "utf-8")
            assert arms.make_arms(
                campaign_file.load_campaign(tmp_path / "campaign.toml"), tmp_path / "campaign.toml"
            )
        elif language == "toml":
            profile.build(tomllib.loads(block), page.name)


# Pages that show flags of engines, containers and the null server, and flags that are shown as not taken.
OF_OTHER_PROGRAMS = {"install.md", "servers.md", "llamacpp.md", "jetson.md", "selftest.md", "spark.md"}
NOT_OURS = {
    "--enable-auto-tool-choice", "--tool-call-parser", "--enable-per-request-metrics",  # vLLM's server
    "--per-request-spec-decode-metrics", "--enable-log-requests", "--enable-log-outputs",  # and these
    "--enable-response-store", "--enable-cache-report",  # SGLang's
    "--summary-export", "--output-format", "--cap-add",  # k6's, oha's, docker's
    "--num-prompt", "--no-NAME", "--terminal",
}  # fmt: skip


def test_every_flag_in_prose_is_one_of_a_command() -> None:
    known = {
        flag for made in PARSERS.values() for action in made()._actions for flag in action.option_strings
    }
    known |= {flag for rows in FLAGS_OF.values() for flag, _, _ in rows}
    wrong = {}
    for page in PAGES:
        spans = re.findall(r"`(--[^`]+)`", _FENCED.sub("", remove_tables(page.read_text("utf-8"))))
        flags = {flag for span in spans for flag in re.findall(r"(?<!\S)--[a-z][\w-]*", span)}
        if page.name not in OF_OTHER_PROGRAMS and (unknown := flags - known - NOT_OURS):
            wrong[page.name] = unknown
    assert wrong == {}


def test_every_path_of_the_sources_in_a_page_exists() -> None:
    folders = "loadgen|tests|scripts|servers|docs|benchmarks|profiles|fuzz"
    wrong = {}
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        paths = re.findall(rf"`((?:{folders})/[\w./-]+)`", page.read_text("utf-8"))
        if missing := [path for path in paths if not [*ROOT.glob(f"{path}*")]]:
            wrong[page.name] = missing
    assert wrong == {}


def test_every_page_that_a_message_names_exists() -> None:
    sources = [*ROOT.glob("loadgen/**/*.py"), *ROOT.glob("servers/**/*.py"), *ROOT.glob("profiles/*.toml")]
    named = {name for path in sources for name in re.findall(r"\bdocs/([\w-]+\.md)", path.read_text("utf-8"))}
    assert named - {page.name for page in PAGES} == set()
    assert len(named) > 10


def test_the_skill_of_coding_agents_is_one_by_its_format() -> None:
    (path,) = ROOT.glob("skills/*/SKILL.md")
    head, _, body = path.read_text("utf-8").removeprefix("---\n").partition("\n---\n")
    keys = dict(line.split(": ", 1) for line in head.splitlines())  # each on one line
    assert set(keys) <= {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
    assert keys["name"] == path.parent.name
    assert (len(keys["description"]) <= 1024, len(keys["compatibility"]) <= 500) == (True, True)
    assert not any(": " in value or " #" in value for value in keys.values())  # YAML takes them as they stand
    assert len(body.splitlines()) < 100
    named = re.findall(r"`--([a-z-]+)", body)
    assert {flag for flag in named if refused(f"bench --{flag} [x]")} == set()


def test_the_comparing_page_has_the_published_tables(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "comparing.md").read_text("utf-8")
    rows = str(ROOT / "tests" / "data" / "published" / "rtx_pro_6000_speed.csv")
    shown = ["--rankings", "--effects"]
    assert main(["compare", rows, *shown]) == 0
    assert f"```\n{capsys.readouterr().out.rstrip()}\n```" in page


@pytest.mark.parametrize(("text", "found"), [
    ("```\nloadgen bench --quiet   a remark\n```\n", ["bench --quiet   a remark"]),
    ("```\na && .venv/bin/loadgen ladder \\\n  --quiet | tee x\n```\n", ["ladder    --quiet"]),
    ("```\nHF_HUB_OFFLINE=1 loadgen bench\n```\n", ["bench"]),
    ("as `loadgen profiles\nhigh-load` shows it", ["profiles high-load"]),
    ("loadgen bench in prose, `loadgen` alone, `loadgen COMMAND --help`", []),
    ("```\npython -m loadgen_servers.null --port 1\n```\n", []),
])  # fmt: skip
def test_command_lines_are_found_where_they_stand(text: str, found: list[str]) -> None:
    assert list(commands(text)) == found


@pytest.mark.parametrize(("command", "why"), [
    ("bench --launch vllm --server-args '--max-num-seqs 8' --profile a,b", ""),
    ("bench --lunch vllm", "no flag --lunch"),
    ("bench --formula output/time", "no flag --formula"),
    ("ladder --formula output/time", ""),
    ("selftest [--streams N] [--interval-ms MS]", ""),
    ("selftest [--stream N]", "no flag --stream"),
    ("report RUN_DIR [--explain]", ""),
    ("report RUN_DIR --quiet", "no flag --quiet"),
    ("bench --help", ""),
    ("launch --quiet", "no command launch"),
])  # fmt: skip
def test_a_flag_that_does_not_exist_is_found(command: str, why: str) -> None:
    assert refused(command) == why


def test_a_value_that_is_not_taken_is_found() -> None:
    assert "invalid choice" in refused("bench --launch vlllm")
