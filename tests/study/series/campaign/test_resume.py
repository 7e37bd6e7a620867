"""A campaign that was ended: what is finished stays byte for byte, and the rest is measured as ever."""

from __future__ import annotations

import csv
import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from builders.campaign_files import INSTANT, cells, contents, facts, failures, the_directory, written
from fakes.supervised import PATIENCE_S, until
from fakes.virtual_serving import virtual_engines
from loadgen import cli
from loadgen.base import files
from loadgen.base.clock import read_wall_clock
from loadgen.base.errors import UsageError
from loadgen.facts.run_facts import Cell
from loadgen.plan.profile import build
from loadgen.records.journal import JOURNAL
from loadgen.records.record import Records
from loadgen.report import run_directory
from loadgen.report.run_directory import load
from loadgen.run.command.options import Options
from loadgen.run.session import Session
from loadgen.study.series.campaign import campaign_command
from loadgen.study.series.campaign.arms import Planned
from loadgen.study.series.campaign.campaign_store import CampaignStore, clear_unfinished
from loadgen.study.series.series_store import StoreError

# Python 3.12 warns of any thread at a fork; the child takes none of their locks.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
AB = ({"name": "A", "preset": "instant"}, {"name": "B", "preset": "instant"})


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing is tested elsewhere."""
    monkeypatch.setattr(campaign_command, "_print_comparison", lambda kept, given: None)


def campaign(path: Path, *words: str) -> int:
    return cli.main(["campaign", str(path), "--quiet", "--allow-launch", *words])


def prompts(directory: Path) -> dict[str, str]:
    """What each finished cell asked."""
    return {known: facts(directory, known)["plan_digest"] for known in cells(directory)}


@pytest.mark.whole
@pytest.mark.timeout(180)  # many runs in turn
def test_killed_at_any_point_and_resumed_it_ends_as_if_it_had_not_been(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, *AB, repeats=3, seed=7)
    with virtual_engines():
        assert campaign(path, "--run-dir", "undisturbed") == 0
    argv = [sys.executable, "-m", "loadgen", "campaign", str(path), "--run-dir", "killed", "--quiet"]
    where = random.Random(5)
    kept: dict[str, bytes] = {}
    for finished in (0, 1, 3, 4):
        resume = ["--resume"] if finished else []
        process = subprocess.Popen([*argv, *resume], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        until(lambda n=finished, p=process: _reached(n) or p.poll() is not None, "that many cells")  # type: ignore[misc]
        time.sleep(where.uniform(0.0, 0.4))
        process.kill()
        assert process.communicate(timeout=PATIENCE_S)[1] == b""
        place = the_directory(Path("killed"))
        now_there = contents(place / "cells")
        assert {name: now_there[name] for name in kept} == kept
        for known in cells(place):
            assert load(place / "cells" / known).records.ok.all()
        kept = now_there
    last = subprocess.run([*argv, "--resume"], check=False, capture_output=True, text=True)
    assert (last.returncode, last.stderr) == (0, "")
    assert " baseline\n" in last.stdout
    assert f"6 of 6 cells are finished: {place}" in last.stdout
    now_there = contents(place / "cells")
    assert {name: now_there[name] for name in kept} == kept
    assert prompts(place) == prompts(the_directory(Path("undisturbed")))
    assert failures(place) == {}
    assert not (place / "unfinished").exists()
    assert _table(place, capsys) == _table(the_directory(Path("undisturbed")), capsys)


def _table(directory: Path, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """Rows and figures of the comparison, and of how many runs each is."""
    capsys.readouterr()
    assert cli.main(["compare", str(directory), "--csv"]) == 0
    lines = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert {line["checkpoint"] for line in lines} == {"A", "B"}
    return [[line[key] for key in ("load", "checkpoint", "baseline", "figure", "runs")] for line in lines]


def _reached(finished: int) -> bool:
    found = Path("killed").glob("*/cells/*")
    return len(list(Path("killed").glob("*/campaign.json"))) == 1 and len(list(found)) >= finished


def test_a_campaign_grows(tmp_path: Path) -> None:
    assert campaign(written(tmp_path, AB[0], repeats=1)) == 0
    place = the_directory()
    before = contents(place / "cells")
    assert campaign(written(tmp_path, *AB, repeats=1), "--resume", "--repeats", "2") == 0
    assert cells(place) == [f"r{n}-{name}-embedded-tiny" for n in (0, 1) for name in "AB"]
    assert {name: contents(place / "cells")[name] for name in before} == before
    assert len(set(prompts(place).values())) == 2
    record = CampaignStore(place).record
    assert (record.repeats, len(record.order)) == (2, 4)


def test_only_some_checkpoints_now_and_the_others_later(tmp_path: Path) -> None:
    path = written(tmp_path, *AB, repeats=1)
    assert campaign(path, "--only", "B") == 0
    assert cells(the_directory()) == ["r0-B-embedded-tiny"]
    assert cli.main(["campaign", "--quiet", "--resume", str(the_directory())]) == 0  # the file is known
    assert cells(the_directory()) == ["r0-A-embedded-tiny", "r0-B-embedded-tiny"]


def test_failed_cells_stay_until_they_are_asked_for_once_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {"name": "B", "preset": "nonesuch"}
    assert campaign(written(tmp_path, AB[0], wrong, repeats=1)) == 0
    place = the_directory()
    assert list(failures(place)) == ["r0-B-embedded-tiny"]
    assert campaign(written(tmp_path, AB[0], wrong, repeats=1), "--resume") == 0
    assert list(failures(place)) == ["r0-B-embedded-tiny"]
    assert campaign(written(tmp_path, *AB, repeats=1), "--resume") == 2
    assert "B on embedded: preset was 'nonesuch' and is 'instant': restore it" in capsys.readouterr().err
    assert campaign(written(tmp_path, *AB, repeats=1), "--resume", "--retry-failed") == 0
    assert failures(place) == {}
    assert cells(place) == ["r0-A-embedded-tiny", "r0-B-embedded-tiny"]


def test_what_is_left_of_a_preview_is_estimated_from_what_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert campaign(written(tmp_path, AB[0], repeats=1)) == 0
    before = contents(the_directory())
    path = written(tmp_path, *AB, repeats=3)
    assert cli.main(["campaign", str(path), "--resume", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "1 are done, 5 are left" in out
    assert "estimated time: about " in out
    assert contents(the_directory()) == before


def planned(name: str = "A") -> Planned:
    cell = Cell(campaign="c", checkpoint=name, server="s", profile="p", repeat=0, start="r0")
    return Planned(cell, build({"name": "p"}), Options())


def a_run(store: CampaignStore, one: Planned) -> Path:
    """Something that was measured, not yet kept."""
    made = store.begin(one.id) / "20260101-000000-p"
    made.mkdir()
    (made / "result.json").write_text("{}", "utf-8")
    return made


def test_a_finished_cell_is_there_whole_and_its_failure_is_forgotten(tmp_path: Path) -> None:
    store, one = CampaignStore(tmp_path / "c"), planned()
    store.fail_cell(one, "no", read_wall_clock(), a_run(store, one))
    assert (store.list_finished(), store.list_failed()) == (set(), {one.id})
    assert (tmp_path / "c" / "failed" / one.id / "result.json").exists()
    store.fail_cell(one, "no again", read_wall_clock())
    assert failures(tmp_path / "c") == {one.id: "no again"}
    store.finish(one.id, a_run(store, one))
    assert (store.list_finished(), store.list_failed()) == ({one.id}, set())
    assert sorted(contents(tmp_path / "c")) == [f"cells/{one.id}/result.json"]


def test_what_was_ended_between_two_renames_is_put_right(tmp_path: Path) -> None:
    store, one, other = CampaignStore(tmp_path), planned(), planned("B")
    store.fail_cell(one, "no", read_wall_clock())
    store.finish(other.id, a_run(store, other))
    a_run(store, one).rename(tmp_path / "cells" / one.id)  # killed right after
    a_run(store, planned("C"))
    (tmp_path / "failed" / ".x.json.new").write_text("{", "utf-8")
    clear_unfinished(store)
    assert (store.list_finished(), store.list_failed()) == ({one.id, other.id}, set())
    assert not (tmp_path / "unfinished").exists()


def _holds(directory: Path, ready: int) -> None:
    with CampaignStore(directory).lock():
        os.write(ready, b"x")
        time.sleep(1000)


@pytest.mark.whole
def test_two_in_one_directory_are_refused_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _holds(tmp_path, write)
    assert os.read(read, 1) == b"x"
    store = CampaignStore(tmp_path)
    with pytest.raises(UsageError, match=rf"another loadgen campaign is running in .* \(pid {child}\)"):
        store.lock().__enter__()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with store.lock():
        pass


@pytest.mark.parametrize("name", ["cells", "unfinished", "cells/a", "campaign.lock"])
def test_a_strangers_directory_that_links_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    own, link = tmp_path / "own", tmp_path / "campaign" / name
    own.mkdir()
    (own / "kept").write_text("own")
    link.parent.mkdir(parents=True)
    link.symlink_to(own / "kept" if name.endswith(".lock") else own)
    with pytest.raises(UsageError, match="symbolic link"):
        CampaignStore(tmp_path / "campaign").lock().__enter__()
    assert [(path.name, path.read_text()) for path in own.iterdir()] == [("kept", "own")]


def test_a_full_disk_ends_the_campaign_and_what_is_done_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finish = CampaignStore.finish

    def full(self: CampaignStore, step: str, directory: Path) -> None:
        if step.startswith("r0-B"):
            with self.writing():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finish(self, step, directory)

    monkeypatch.setattr(CampaignStore, "finish", full)
    path = written(tmp_path, *AB)
    assert campaign(path) == 1
    place = the_directory()
    err = capsys.readouterr().err
    assert f"cannot write {place}: No space left on device; 1 of 4 cells are finished; when it can" in err
    assert f"loadgen campaign {path} --resume {place}" in err
    assert err.count("\n") == 1
    assert cells(place) == ["r0-A-embedded-tiny"]
    assert failures(place) == {}
    monkeypatch.setattr(CampaignStore, "finish", finish)
    assert campaign(path, "--resume") == 0
    assert len(cells(place)) == 4


@pytest.mark.parametrize("how", ["records", "report", "log"])
def test_a_disk_that_fills_while_a_run_is_written_ends_the_campaign_too(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = written(tmp_path, INSTANT)
    if how == "report":
        write_whole = files.write_whole

        def some(path: Path, write: Callable[[BinaryIO], None]) -> None:
            if path.name == "report.txt":
                full()
            write_whole(path, write)

        monkeypatch.setattr("loadgen.base.files.write_whole", some)
    else:
        owner, name = {"records": (Records, "save"), "log": (Session, "keep")}[how]
        monkeypatch.setattr(owner, name, full)
    assert campaign(path) == 1
    assert "No space left on device; 0 of 2 cells are finished" in capsys.readouterr().err
    assert cells(the_directory()) == []
    assert failures(the_directory()) == {}
    (kept,) = the_directory().glob("interrupted/*/*")  # what was measured is not thrown away
    assert run_directory.load(kept).metrics.completed > 0


def test_a_cell_that_fails_keeps_what_its_run_had_measured(tmp_path: Path) -> None:
    store, cell = CampaignStore(tmp_path), planned()
    run = store.begin(cell.id) / "run"
    run.mkdir()
    (run / JOURNAL).write_bytes(b"measured")
    store.fail_cell(cell, "why", read_wall_clock())
    (kept,) = tmp_path.glob(f"interrupted/*/run/{JOURNAL}")
    assert (kept.read_bytes(), failures(tmp_path)) == (b"measured", {cell.id: "why"})


def test_an_unwritable_directory_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    assert campaign(written(tmp_path, INSTANT), "--run-dir", "file") == 2
    assert "cannot write file: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda place: (place / "campaign.json").unlink(), "is not a campaign's directory"),
        (lambda place: (place / "campaign.json").write_text("{"), "campaign.json is damaged"),
        (lambda place: (place / "failed").mkdir() or (place / "failed/x.json").write_text("{"), "is damaged"),
    ],
)
def test_a_damaged_directory_is_told(
    damage: Any, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, {"name": "A", "preset": "nonesuch"}, repeats=1)
    assert campaign(path) == 1
    place = the_directory()
    for old in (place / "failed").glob("*"):
        old.unlink()
    (place / "failed").rmdir()
    damage(place)
    capsys.readouterr()
    assert campaign(path, "--resume", str(place)) == 2
    assert says in capsys.readouterr().err


def test_a_disk_that_is_full_before_the_first_byte_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(descriptor: int, data: bytes, at: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    assert campaign(written(tmp_path, *AB)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"loadgen: cannot write {the_directory()}: No space left on device"


def test_a_store_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    (tmp_path / "unfinished").write_text("in the way", "utf-8")
    with pytest.raises(StoreError, match=f"cannot write {tmp_path}: Not a directory"):
        CampaignStore(tmp_path).begin(planned().id)
