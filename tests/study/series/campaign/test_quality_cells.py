"""The quality of a campaign's arms is measured once each, whatever ends the campaign or a task meanwhile."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from builders.campaign_files import cells, contents, the_directory, written
from builders.loops import loop_over, read_tables
from builders.made_qualities import read_qualities
from loadgen import cli
from loadgen.base.errors import MeasureError
from loadgen.run.session import Session
from loadgen.study.quality.quality_record import KlDivergence, MeanInterval, Quality
from loadgen.study.series.campaign import campaign_command
from loadgen.study.series.campaign.quality_cells import (
    QualityCells,
    QualityKind,
    QualityState,
    QualityTask,
)

TABLES = read_tables("quality_cells")

pytestmark = [pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]
A, B, C = ({"name": name, "preset": "instant"} for name in "ABC")
ONE = MeanInterval(mean=1.0, low=0.99, high=1.01)
KL = KlDivergence(
    mean=0.031, low=0.03, high=0.032, tokens=20_000, answers=1250, direction="reference‖candidate",
    self_check=ONE,
)  # fmt: skip
QUALITY = {"reference": "A", "tokens": 500, "margin": 0.05}


@dataclass
class FakeMeasuring:
    """Notes each task; `ends` are raised or returned, by the arm's checkpoint."""

    ends: dict[str, Any] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def measure(self, cells: QualityCells, task: QualityTask, session: Session) -> Quality | None:
        name = cells.arms[task.arm].checkpoint
        self.calls.append(f"{task.kind} {name}")
        assert session.access.base_url.startswith("http://127.0.0.1:")
        settings = {"tokens": cells.table.tokens}
        found = Quality(reference="a", candidate=name, kl=KL, settings=settings)
        end: Quality | BaseException | None = self.ends.pop(name, found)
        if isinstance(end, BaseException):
            raise end
        if end is None or task.kind != QualityKind.SAMPLE:
            return end
        return end.model_copy(update={"kl": None, "noise_floor": ONE, "why": {"kl": "it is the reference"}})


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeMeasuring:
    """What measures in place of servers that have probabilities; what is compared is tested elsewhere."""
    measuring = FakeMeasuring()
    monkeypatch.setattr(QualityCells, "measure_task", lambda *given: measuring.measure(*given))
    monkeypatch.setattr(campaign_command, "_print_comparison", lambda *given: None)
    return measuring


def run(tmp_path: Path, *words: str, checkpoints: tuple[dict[str, Any], ...] = (A, B), **keys: Any) -> int:
    keys = {"quality": QUALITY, "repeats": 1, **keys}
    return cli.main(["campaign", str(written(tmp_path, *checkpoints, **keys)), *words])


def test_each_arm_is_measured_once_on_a_server_that_is_up(
    tmp_path: Path, fake: FakeMeasuring, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, repeats=2) == 0
    place = the_directory()
    assert fake.calls == ["sample A", "score B"]
    assert len(cells(place)) == 4
    assert len(list((place / "servers").glob("*"))) <= 4
    found = read_qualities(place)
    assert list(found) == ["A on embedded", "B on embedded"]
    assert found["B on embedded"].kl == KL
    assert found["B on embedded"].settings == {"tokens": 500}
    out = capsys.readouterr().out.splitlines()
    assert [line for line in out if line.startswith("quality")] == [
        "quality, A on embedded: sampling",
        "quality, A on embedded: 500 tokens sampled; noise floor 1.000 ±0.010 nats a token",
        "quality, B on embedded: scoring",
        "quality, B on embedded: KL 0.0310 ±0.0010 nats a token; same within 0.05 nats a token",
    ]
    before = contents(place / "quality")
    assert run(tmp_path, "--resume", str(place), repeats=2) == 0
    assert len(fake.calls) == 2
    assert contents(place / "quality") == before


def test_a_candidate_that_cannot_score_is_scored_by_the_reference(
    tmp_path: Path, fake: FakeMeasuring, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.ends = {"B": None}
    assert run(tmp_path) == 0
    assert fake.calls == ["sample A", "score B", "score back B"]
    assert "quality, B on embedded: it cannot score a prompt, and has sampled" in capsys.readouterr().out


def test_a_task_that_fails_is_recorded_and_retried_when_asked(
    tmp_path: Path, fake: FakeMeasuring, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.ends = {"B": MeasureError("it reports none: \x1b[1mdo this")}
    assert run(tmp_path, checkpoints=(A, B, C)) == 0
    place = the_directory()
    out = capsys.readouterr().out
    assert "quality, B on embedded: FAILED: it reports none: " in out
    assert "\x1b" not in out
    qualities = read_qualities(place)
    assert [found.kl is None for found in qualities.values()] == [True, True, False]
    assert qualities["B on embedded"].why["agreement"] == "it reports none: \ufffd[1mdo this"
    assert "retry the failed cells: loadgen campaign" in out
    failed = json.loads((place / "quality" / "failed" / "B-embedded.json").read_text("utf-8"))
    assert (failed["arm"], failed["reason"]) == ("B on embedded", "it reports none: \x1b[1mdo this")
    assert run(tmp_path, "--resume", checkpoints=(A, B, C)) == 0
    assert len(fake.calls) == 3
    assert run(tmp_path, "--resume", "--retry-failed", checkpoints=(A, B, C)) == 0
    assert fake.calls[3:] == ["score B"]
    assert not (place / "quality" / "failed" / "B-embedded.json").exists()


def test_without_its_reference_nothing_is_measured(tmp_path: Path, fake: FakeMeasuring) -> None:
    fake.ends = {"A": MeasureError("none")}
    assert run(tmp_path) == 0
    assert fake.calls == ["sample A"]
    assert run(tmp_path, "--resume", "--only", "B", "--retry-failed") == 0
    assert fake.calls == ["sample A"]


def test_quality_is_added_to_a_campaign_but_not_changed(
    tmp_path: Path, fake: FakeMeasuring, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, quality=None) == 0
    assert run(tmp_path, "--resume") == 0
    assert fake.calls == ["sample A", "score B"]
    assert run(tmp_path, "--resume", quality={**QUALITY, "reference": "B"}) == 2
    assert "[quality]: reference was 'A' and is 'B'" in capsys.readouterr().err


def test_two_arms_of_one_file_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.toml").write_text("input_len = 8\noutput_len = 3\nnum_prompts = 3\n", "utf-8")
    arms = {**A, "name": "A B"}, {**A, "name": "A-B", "profiles": ["./other.toml"]}
    assert run(tmp_path, checkpoints=arms, quality={"reference": "A B"}) == 2
    assert "'A B on embedded' and 'A-B on embedded' would be one file: rename one" in capsys.readouterr().err


def test_a_dry_run_shows_the_quality_that_is_left(
    tmp_path: Path, fake: FakeMeasuring, capsys: pytest.CaptureFixture[str]
) -> None:
    def preview(*words: str, **keys: Any) -> str:
        capsys.readouterr()
        assert run(tmp_path, "--dry-run", *words, checkpoints=(A, B, C), **keys) == 0
        return " ".join(capsys.readouterr().out.partition("estimated time")[2].split())

    begun = "quality: 500 tokens of B on embedded, the same within 0.05 nats a token; "
    assert begun + "3 of 3 arms left" in preview(quality={**QUALITY, "reference": "B"})
    fake.ends = {"C": MeasureError("none")}
    assert run(tmp_path, checkpoints=(A, B, C)) == 0
    assert "; 1 of 3 arms left" in preview("--resume", "--retry-failed")
    assert "; 0 of 3 arms left" in preview("--resume")


@loop_over(("given", "now", "started"), TABLES["orders"])
def test_tasks_are_done_on_the_first_server_that_can(
    given: dict[str, str], now: list[str], started: str | None
) -> None:
    """Now: what can be done on the servers of the arms; started: whose server is started once more."""
    sets = {key: frozenset(names) for key, names in given.items() if key not in ("reference", "arms")}
    state = QualityState(given["reference"], tuple(given["arms"]), **sets)
    assert [f"{task.kind} {task.arm}" for arm in state.arms for task in state.list_tasks(arm)] == now
    assert state.choose_arm() == started
