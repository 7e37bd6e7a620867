"""Cells of one server that get the same prompts: parted, or no verdict is made of warm and cold ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders import data_files
from builders.campaign_files import written
from fakes.caching_server import CachingServer
from fakes.virtual_run import BASE_URL
from fakes.virtual_serving import VirtualServing
from loadgen import cli
from loadgen.run.session import PARTED

pytestmark = [pytest.mark.long]
MADE = "input_len = 256\noutput_len = 4\nnum_prompts = 12\nmax_concurrency = 2\n"


def run(place: Path, verb: str, profile: str, *more: str, **server: Any) -> int:
    """The exit code of a campaign or gate of two arms on one server, which counts its cache's hits."""
    path = written(place, *({"name": name, "base_url": BASE_URL} for name in "AB"), repeats=3)
    (place / "tiny.toml").write_text(profile, "utf-8")
    with VirtualServing(CachingServer(**{"reports": "counters", **server})):
        return cli.main([verb, str(path), "--quiet", "--run-dir", str(place / "runs"), *more])


def of_file(place: Path) -> str:
    """A profile of twelve prompts in a file."""
    prompts = (" ".join(f"w{(i * 7919 + j * 31 * i + j) % 997}" for j in range(160)) for i in range(12))
    rows = [{"prompt": prompt, "output_tokens": 4} for prompt in prompts]
    return f"dataset_path = {json.dumps(data_files.jsonl(place, rows))}\nmax_concurrency = 2\n"


def list_runs(place: Path) -> list[tuple[str, bool]]:
    """What each cell says of the cache, and whether it was warm, in the order of measuring."""
    found = sorted(place.rglob("cells/*/result.json"), key=lambda path: path.stat().st_mtime_ns)
    facts = [json.loads(path.read_text("utf-8"))["loadgen"] for path in found]
    return [(one["cache_reset"], "prefix-cache" in str(one["verdict"]["doubts"])) for one in facts]


EQUAL, CACHED = "take A or B: they are equally fast", "% of the prompt tokens cached, baseline 0 %"


@pytest.mark.parametrize(
    ("file", "server", "warm", "said"),
    [
        (False, {}, [False] * 6, EQUAL),
        (True, {}, [False] * 6, EQUAL),
        # In one repeat every arm gets the same prompts; a file is the same in all.
        (False, {"salted": False}, [False, True] * 3, CACHED),
        (True, {"salted": False}, [False, *[True] * 5], CACHED),
        (
            True,
            {"owner": "", "reports": "", "salted": False},  # found by TTFT
            [False, *[True] * 5],
            "prompts cached, the baseline's not",
        ),
    ],
)
def test_the_cells_of_one_server_are_parted_or_have_no_verdict(
    file: bool, server: dict[str, Any], warm: list[bool], said: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert run(tmp_path, "campaign", of_file(tmp_path) if file else MADE, **server) == 0
    found = list_runs(tmp_path)
    assert [each for _, each in found] == warm
    assert server or {how for how, _ in found} == {PARTED}
    printed = " ".join(capsys.readouterr().out.split())
    assert said in printed
    assert ("equally fast" in printed, "not compared: " in printed) == (not server, bool(server))
    assert "B is faster" not in printed


@pytest.mark.parametrize(
    ("salted", "code", "said"), [(True, 0, "gate: not slower"), (False, 7, "cached prompts")]
)
def test_a_gate_of_one_server_compares_cold_sides_alone(
    salted: bool, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "gate", of_file(tmp_path), "--max-pairs", "4", salted=salted) == code
    assert said in " ".join(capsys.readouterr().out.split())
