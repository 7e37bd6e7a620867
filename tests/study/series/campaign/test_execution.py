"""A campaign that runs: every cell is kept or its failure told, whatever a server does."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from builders.campaign_files import TINY, cells, contents, facts, failures, the_directory, written
from builders.serving_scripts import engine_command, launch_command
from fakes.scripted_server import Answer, Asked, api, closed_port, stream, whole
from fakes.virtual_serving import VirtualServing
from loadgen import cli
from loadgen.base.errors import UsageError
from loadgen.host.sensor import Reading, Sensor
from loadgen.report.run_directory import load
from loadgen.run import session
from loadgen.study.series.campaign import campaign_command, execution
from loadgen.study.series.campaign.campaign_file import CoolDown
from loadgen.study.series.campaign.campaign_store import CampaignStore
from loadgen.study.series.campaign.execution import MachineWatch
from loadgen.study.series.series_store import StoreError

# Python 3.12 warns of any thread at a fork; the child takes none of their locks.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
AB = ({"name": "A", "preset": "instant"}, {"name": "B", "preset": "instant"})
STARTS, PROFILES = ["r0", "r0", "r1", "r1"], ["tiny", "other", "other", "tiny"]
IDS = ["r0-A-embedded-tiny", "r0-B-embedded-tiny", "r1-A-embedded-tiny", "r1-B-embedded-tiny"]


@pytest.fixture(autouse=True)
def compared(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The directories that were compared, which is tested elsewhere; a server that failed soon lives."""
    found: list[Path] = []

    def note(kept: CampaignStore, given: object) -> None:
        found.append(kept.directory)

    monkeypatch.setattr(campaign_command, "_print_comparison", note)
    monkeypatch.setattr(session, "_FAILED_S", 0.5)
    return found


def campaign(path: Path, *words: str) -> int:
    return cli.main(["campaign", str(path), "--allow-launch", *words])


def serving(tmp_path: Path, name: str, code: str) -> dict[str, Any]:
    """A checkpoint on a server of a few lines."""
    (tmp_path / name).mkdir(exist_ok=True)
    return {"name": name, "launch_command": launch_command(tmp_path / name, code)}


def test_every_cell_is_a_run_that_says_where_it_stands(
    tmp_path: Path, compared: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert campaign(written(tmp_path, *AB, seed=7)) == 0
    place = the_directory()
    assert cells(place) == IDS
    assert failures(place) == {}
    told = {known: facts(place, known) for known in IDS}
    assert all(one["cell"]["start"] == known.split("-")[0] for known, one in told.items())
    cell = {"campaign": "c", "checkpoint": "A", "server": "embedded", "profile": "tiny", "repeat": 0}
    assert told[IDS[0]]["cell"] == {**cell, "start": "r0"}
    seeds = {(one["seed"], one["seed_chosen"], one["repeat"]) for one in told.values()}
    assert seeds == {(7, True, 0), (7, True, 1)}
    # The same prompts for all that is compared, other prompts in each repeat.
    digests = [told[known]["plan_digest"] for known in IDS]
    assert digests[0] == digests[1] != digests[2] == digests[3]
    assert load(place / "cells" / IDS[0]).facts.cell is not None
    kept = json.loads((place / "campaign.json").read_text("utf-8"))
    assert (kept["seed"], kept["baseline"], kept["order"]) == (7, "A", [IDS[0], IDS[1], IDS[3], IDS[2]])
    assert not (place / "unfinished").exists()
    begun, *lines = capsys.readouterr().out.splitlines()
    assert begun == f"4 cells, less than 1 s, in {place}"
    order = ("r0 A", "r0 B", "r1 B", "r1 A")
    shown = [f"[{number}/4] {of} on embedded, tiny" for number, of in enumerate(order, 1)]
    assert [line.split(":")[0] for line in lines[:4]] == shown
    assert all(
        re.search(r": [\d.]+ tok/s, mean TTFT [\d.]+ ms, [A-Z]+(; about \d+ s left)?$", line)
        for line in lines[:4]
    )
    assert f"4 of 4 cells are finished: {place}" in lines
    assert f"again:   loadgen compare {place}" in lines
    assert compared == [place]


@pytest.mark.whole
def test_one_server_serves_a_repeat_and_the_next_starts_another(tmp_path: Path, ports: list[int]) -> None:
    table = {"name": "A", "launch_command": engine_command("--preset", "instant")}
    path = written(tmp_path, table, profiles=["./tiny.toml", "./other.toml"])
    (tmp_path / "other.toml").write_text(TINY, "utf-8")
    assert campaign(path) == 0
    place = the_directory()
    order = sorted(cells(place), key=lambda known: facts(place, known)["started"])
    assert order == [f"{of}-A-command-{name}" for of, name in zip(STARTS, PROFILES, strict=True)]
    assert [facts(place, known)["cell"]["start"] for known in order] == STARTS
    assert len(ports) == 2
    assert len(list((place / "servers").glob("*-command-server*/server.log"))) == 2
    assert all((place / "cells" / known / "server.log").stat().st_size for known in order)


def test_a_ladder_is_a_cell_with_a_run_for_each_length(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, AB[0], profiles=["./up.toml"])
    (tmp_path / "up.toml").write_text(
        "ladder = [1, 5]\noutput_len = 3\nnum_prompts = 2\nmax_concurrency = 1\n", "utf-8"
    )
    assert campaign(path, "--quiet") == 0
    place = the_directory()
    assert cells(place) == ["r0-A-embedded-up", "r1-A-embedded-up"]
    for repeat, known in enumerate(cells(place)):
        cell = place / "cells" / known
        rows = json.loads((cell / "ladder.json").read_text("utf-8"))["rows"]
        runs = [load(cell / row["run"]).facts for row in rows]
        assert [(one.profile.input_len, one.repeat) for one in runs] == [(1, repeat), (5, repeat)]
        assert {one.cell.profile for one in runs if one.cell is not None} == {"up"}
        assert (cell / "ladder.md").stat().st_size
    assert "tok/s (SIMULATED, no model ran)" not in capsys.readouterr().out  # --quiet


DIES = "Server(lambda asked: die(9, 'CUDA out of memory') if asked.prompt_tokens > 8 else None).serve()"


def test_a_cell_of_an_attached_server_is_measured_again_with_new_prompts(tmp_path: Path) -> None:
    """The same for every arm, since the attempt is a part of what they are drawn from."""
    broken = ["until it is resumed"]

    def answer(asked: Asked) -> Answer:
        return Answer([whole(b"{}", "500 Oh")]) if broken else stream()

    with VirtualServing(api(answer)) as server:
        rows = [{"name": name, "base_url": server.base_url} for name in "AB"]
        path = written(tmp_path, *rows, repeats=1, seed=7)
        assert campaign(path) == 1
        broken.clear()
        assert campaign(path, "--resume", "--retry-failed") == 0
        other = written(tmp_path, *rows, repeats=1, seed=7, name="other")
        assert campaign(other, "--run-dir", "first") == 0
    places = [the_directory(Path(base)) for base in ("runs", "first")]
    again, first = ([facts(place, known) for known in cells(place)] for place in places)
    assert [each["attempt"] for each in again + first] == [1, 1, 0, 0]
    assert len({each["plan_digest"] for each in again}) == 1
    assert len({each["plan_digest"] for each in again + first}) == 2


FAILING = [
    # A's server in a few lines or as its table has it; what the reason of its failed cell holds
    ("die(7, 'CUDA out of memory')", "command ended with 7 before it was ready: the GPU's memory ran out"),
    ("print('what it died of'); die(3, 'last line')", "\n  | what it died of\n  | last line"),
    ("Server(lambda asked: 500).serve()", "generates no token: http-status: 500"),
    ("Server(lambda asked: 500 if asked.number > 1 else None).serve()", "every request failed, the first"),
    ({"base_url": "http://127.0.0.1:{port}"}, "127.0.0.1:{port}"),
    ({"launch": "transformers", "model": "/nowhere/at/all"}, "/nowhere/at/all does not exist"),
    ({"preset": "nonesuch"}, "nonesuch"),
    ({"preset": "instant", "backend": "openai-chat"}, "--random-input-len 8"),
]


@pytest.mark.whole
@pytest.mark.parametrize(("server", "reason"), FAILING)
def test_a_failed_cell_has_its_reason_and_the_campaign_goes_on(
    server: str | dict[str, str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = str(closed_port())
    if isinstance(server, str):
        table = serving(tmp_path, "A", server)
    else:
        table = {"name": "A"} | {key: value.replace("{port}", port) for key, value in server.items()}
    assert campaign(written(tmp_path, table, AB[1])) == 0
    place = the_directory()
    assert cells(place) == ["r0-B-embedded-tiny", "r1-B-embedded-tiny"]
    assert [name[:4] for name in sorted(failures(place))] == ["r0-A", "r1-A"]
    assert all(reason.replace("{port}", port) in told for told in failures(place).values())
    (first, _) = sorted((place / "failed").glob("*.json"))
    kept = json.loads(first.read_text("utf-8"))
    assert (kept["cell"]["checkpoint"], kept["cell"]["repeat"]) == ("A", 0)
    said = capsys.readouterr().out
    assert re.search(r"\[1/4\] r0 A on \w+, tiny: FAILED: ", said)
    assert "2 of 4 cells are finished, 2 failed: " in said
    assert f"{tmp_path}/c.toml --allow-launch --resume {place} --retry-failed" in said


@pytest.mark.whole
def test_a_server_that_dies_fails_its_cell_and_is_restarted(tmp_path: Path, ports: list[int]) -> None:
    path = written(tmp_path, serving(tmp_path, "A", DIES), profiles=["./long.toml", "./tiny.toml"], repeats=1)
    (tmp_path / "long.toml").write_text(TINY.replace("input_len = 8", "input_len = 9"), "utf-8")
    assert campaign(path) == 0
    place = the_directory()
    assert cells(place) == ["r0-A-command-tiny"]
    assert facts(place, "r0-A-command-tiny")["cell"]["start"] == "r0.2"
    (reason,) = failures(place).values()
    assert "the GPU's memory ran out" in reason
    assert load(place / "failed" / "r0-A-command-long").facts.profile.input_len == 9
    assert len(ports) == 2


class Hot(Sensor):
    """A sensor that cools down by ten degrees a look."""

    def __init__(self, celsius: float | None) -> None:
        self.celsius = celsius

    def read(self, pids: Any) -> Any:
        if self.celsius is None:
            return Reading()
        self.celsius -= 10
        return Reading({("temperature_c", "GPU 0"): self.celsius, ("temperature_c", "GPU 1"): 20.0})


@pytest.mark.parametrize(
    ("celsius", "wanted", "said"),
    [
        (95.0, CoolDown(to_c=50.0), ["cooled down from 85 to 45 °C in 0 s"]),
        (50.0, CoolDown(to_c=50.0), []),
        (9000.0, CoolDown(to_c=50.0, at_most_s=0.02), ["still"]),
        (None, CoolDown(to_c=50.0), ["no temperature sensor can be read"]),
    ],
)
def test_a_cell_waits_until_the_machine_is_cool(
    celsius: float | None, wanted: CoolDown, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "_POLL_S", 0.001)
    told: list[str] = []
    watch = MachineWatch(wanted, [Hot(celsius)], told.append)
    watch.wait_for_start()
    if celsius is None:
        watch.wait_for_start()  # it is said once
    assert [line[: len(start)] for line, start in zip(told, said, strict=True)] == said


def test_a_campaign_cools_down_before_every_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[CoolDown] = []

    def wait(wanted: CoolDown, *_: object) -> str:
        waits.append(wanted)
        return ""

    monkeypatch.setattr(execution, "wait_until_cool", wait)
    assert campaign(written(tmp_path, AB[0], cool_down={"to_c": 50}), "--quiet") == 0
    assert len(waits) >= 2


def quietly(path: Path, *words: str) -> int:
    return campaign(path, "--quiet", *words)


def test_only_some_checkpoints_now_and_the_others_later(tmp_path: Path) -> None:
    path = written(tmp_path, *AB, repeats=1)
    assert quietly(path, "--only", "B") == 0
    assert cells(the_directory()) == ["r0-B-embedded-tiny"]
    assert cli.main(["campaign", "--quiet", "--resume", str(the_directory())]) == 0  # the file is known
    assert cells(the_directory()) == ["r0-A-embedded-tiny", "r0-B-embedded-tiny"]


def test_failed_cells_stay_until_they_are_asked_for_once_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {"name": "B", "preset": "nonesuch"}
    assert quietly(written(tmp_path, AB[0], wrong, repeats=1)) == 0
    place = the_directory()
    assert list(failures(place)) == ["r0-B-embedded-tiny"]
    assert quietly(written(tmp_path, AB[0], wrong, repeats=1), "--resume") == 0
    assert list(failures(place)) == ["r0-B-embedded-tiny"]
    assert quietly(written(tmp_path, *AB, repeats=1), "--resume") == 2
    assert "B on embedded: preset was 'nonesuch' and is 'instant': restore it" in capsys.readouterr().err
    assert quietly(written(tmp_path, *AB, repeats=1), "--resume", "--retry-failed") == 0
    assert failures(place) == {}
    assert cells(place) == ["r0-A-embedded-tiny", "r0-B-embedded-tiny"]


def test_what_is_left_of_a_preview_is_estimated_from_what_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quietly(written(tmp_path, AB[0], repeats=1)) == 0
    before = contents(the_directory())
    path = written(tmp_path, *AB, repeats=3)
    assert cli.main(["campaign", str(path), "--resume", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "1 are done, 5 are left" in out
    assert re.search(r"estimated time: (less than|about) \d+ s\n", out)  # as long as the first one took
    assert contents(the_directory()) == before


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
    assert quietly(path) == 1
    place = the_directory()
    for old in (place / "failed").glob("*"):
        old.unlink()
    (place / "failed").rmdir()
    damage(place)
    capsys.readouterr()
    assert quietly(path, "--resume", str(place)) == 2
    assert says in capsys.readouterr().err


def test_a_store_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    (tmp_path / "unfinished").write_text("in the way", "utf-8")
    with pytest.raises(StoreError, match=f"cannot write {tmp_path}: Not a directory"):
        CampaignStore(tmp_path).begin("r0-A-s-p")
