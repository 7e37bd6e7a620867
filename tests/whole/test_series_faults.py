"""Whatever dies in the middle of a series: nothing is lost, nothing is measured twice, and it goes on."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

from builders.campaign_files import written
from fakes.scripted_server import Answer, Asked
from fakes.virtual_run import BASE_URL
from fakes.virtual_servers import EngineServer
from fakes.virtual_serving import VirtualServing, virtual_engines
from loadgen import cli
from loadgen.base import clock
from loadgen.base.errors import UsageError
from loadgen.records.journal import JOURNAL
from loadgen.report import run_directory
from loadgen.study.series.series_store import INTERRUPTED

# A command runs in a fork of this process, disturbed as one of its operations begins. Operations are what
# changes a file below `runs`, and each request: "os.rename runs/…" and "request 2/3", the second run's third.
_PATH_OF = {"os.mkdir": 0, "os.rename": 1, "os.remove": 0, "open": 0}  # of an audit event's arguments
_WRITES = os.O_WRONLY | os.O_RDWR
SLOW = "jetson-thor/qwen3-8b-bf16"  # of an engine to which few requests are sent
_JOURNAL = "open */journal.bin"
_PATCH = pytest.MonkeyPatch()  # of a fork, which undoes nothing
Heed = Callable[[Asked], None]


class Ended(msgspec.Struct, frozen=True):
    """How a command ended, what it printed, and its operations; `!` stands before the disturbed one."""

    code: int
    out: str
    err: str
    events: tuple[str, ...]

    @property
    def runs(self) -> int:
        """How many runs it began."""
        return len({event for event in self.events if fnmatch(event, _JOURNAL)})


class Disturbance:
    """What happens to an operation, the last of some that match these patterns one after another."""

    def __init__(self, *stage: str) -> None:
        self.left, self.began = list(stage), False

    def heed(self, event: str) -> bool:
        """Note an operation that begins; return whether it is disturbed, as all that follow are."""
        if self.left and fnmatch(event, self.left[0]):
            del self.left[0]
            self.began = not self.left
            return self.began
        return False

    def act(self, event: str) -> None:
        """Disturb an operation."""


class Kill(Disturbance):
    """kill -9."""

    def act(self, event: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class CtrlC(Disturbance):
    """Ctrl-C, and once more at the next operation on a file."""

    times = 2

    def act(self, event: str) -> None:
        if self.times == 2 or (self.times and not event.startswith("request")):  # after the first is heard
            self.times -= 1
            os.kill(os.getpid(), signal.SIGINT)


class Terminate(Disturbance):
    """SIGTERM, once."""

    def act(self, event: str) -> None:
        self.began = False
        os.kill(os.getpid(), signal.SIGTERM)


class FullDisk(Disturbance):
    """No file can be begun, renamed or made any more."""

    def act(self, event: str) -> None:
        if not event.startswith(("os.remove", "request")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class ClockStep(Disturbance):
    """The wall clock goes back by an hour; the next run is killed."""

    def act(self, event: str) -> None:
        class Back(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return datetime.now(UTC) - timedelta(hours=1)

        if fnmatch(event, _JOURNAL):
            os.kill(os.getpid(), signal.SIGKILL)
        _PATCH.setattr(clock, "datetime", Back)


class ServerDeath(Disturbance):
    """The server that the command found there answers no more."""

    def act(self, event: str) -> None:
        SERVERS[-1].refuses = SERVERS[-1].died = True


SERVERS: list[EngineServer] = []


@contextmanager
def attached(heed: Heed) -> Iterator[None]:
    """A virtual engine at `BASE_URL`, which no run starts."""
    SERVERS.append(EngineServer(lambda _: Answer([]), flags=["--preset", SLOW], heed=heed))
    with VirtualServing(SERVERS[-1]):
        yield


def play(
    words: Sequence[str],
    place: Path,
    disturbance: Disturbance | None = None,
    on: Callable[[Heed], AbstractContextManager[None]] = virtual_engines,
) -> Ended:
    """Run a command in a directory, on virtual engines or other servers, and wait until it has ended."""
    files = [place / f".{name}" for name in ("out", "err", "events")]
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            _run(words, place, files, disturbance or Disturbance(), on)
        os._exit(99)
    _, status = os.waitpid(child, 0)
    out, err, events = (path.read_text("utf-8") for path in files)
    return Ended(os.waitstatus_to_exitcode(status), out, err, tuple(events.splitlines()))


def _run(
    words: Sequence[str],
    place: Path,
    files: Sequence[Path],
    disturbance: Disturbance,
    on: Callable[[Heed], AbstractContextManager[None]],
) -> NoReturn:
    os.chdir(place)
    out, err, events = (path.open("w", encoding="utf-8") for path in files)
    sys.stdout, sys.stderr, sys.argv = out, err, ["loadgen", *words]
    runs = asked = 0

    def note(event: str) -> None:
        nonlocal runs, asked
        mark = "!\n" if disturbance.heed(event) else ""
        os.write(events.fileno(), f"{mark}{event}\n".encode())
        if fnmatch(event, _JOURNAL):
            runs, asked = runs + 1, 0
        if disturbance.began:
            disturbance.act(event)

    def audit(event: str, given: tuple[Any, ...]) -> None:
        if event in _PATH_OF and (event != "open" or (isinstance(given[2], int) and given[2] & _WRITES)):
            path = given[_PATH_OF[event]]
            if isinstance(path, str | os.PathLike) and str(path).startswith("runs"):
                note(f"{event} {path}")

    def heed(request: Asked) -> None:
        nonlocal asked
        if request.head.startswith("POST"):
            asked += 1
            note(f"request {runs}/{asked}")

    sys.addaudithook(audit)
    with on(heed):
        cli.run()


pytestmark = [pytest.mark.whole, pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]
LADDER = "ladder = [1, 8, 64]\noutput_len = 4\nnum_prompts = 2\nmax_concurrency = 1\n"
LOAD = ("--input-len", "8", "--output-len", "4", "--num-prompts", "6", "--seed", "7")
# Each run of a search is the shortest there may be: how long this machine takes for one decides nothing.
SEARCH = {"slo": "e2el p50 < 60s", "over": "concurrency", "min_duration_s": 4, "budget_s": 36, "highest": 4}
RESULT = "*/result.json"
FILES = run_directory.RESULT, JOURNAL  # a directory with one of them has a run


class Layout(msgspec.Struct, frozen=True):
    """Where a series keeps what it has measured."""

    record: str  # replaced after each run
    placed: str  # the name that a run gets as it begins to count
    whole: str  # where such a run is, below `runs`


class Series(msgspec.Struct, frozen=True):
    """A command that measures several runs, the next one by what has come of those before."""

    words: tuple[str, ...]
    layout: Layout
    presets: tuple[str, ...] = ("instant",)  # of the engine of each arm
    keys: dict[str, Any] = {}  # of its file, if the command has one


CELLS, POINTS = (Layout("*/attempts.json", f"*/{name}/*", f"*/{name}/*") for name in ("cells", "points"))
SEARCHED = Layout("*/limit.json", "*[es]/00*", "**/*[es]/00*")  # below `runs`, and `probe`
CAMPAIGN = ("campaign", "c.toml", "--allow-launch")
SERIES = {
    "bench": Series(
        ("bench", "--repeat", "3", "--request-id-prefix", "r", *LOAD), Layout(RESULT, RESULT, "*")
    ),
    "ladder": Series(
        ("ladder", "--profile", "./up.toml", "--seed", "7"),
        Layout("*/ladder.json", "*-ladder/00*", "*-ladder/00*"),
    ),
    "ladder, at depth": Series(
        ("ladder", "--depth", "0,8", "--concurrency", "2", "-p", "8", "-n", "4", "--seed", "7"),
        Layout("*/depth.json", "*-depth/00*", "*-depth/00*"),
    ),
    "sweep": Series(("sweep", "--concurrency", "1,2,4", *LOAD), POINTS),
    "limit": Series(
        (
            "limit", "--profile", "./tiny.toml", "--seed", "7", "--slo", "e2el p50 < 60s", "--over",
            "concurrency", "--min-duration", "4s", "--budget", "36s", "--to", "4",
        ), SEARCHED, (SLOW,),
    ),
    "campaign, one arm": Series(CAMPAIGN, CELLS, keys={"repeats": 3}),
    "campaign, two arms": Series(CAMPAIGN, CELLS, ("instant", "instant")),
    "limits, two arms": Series(CAMPAIGN, SEARCHED, (SLOW, SLOW), {"repeats": 1, "limit": SEARCH}),
    "gate, two arms": Series(
        ("gate", "c.toml", "--allow-launch", "--max-pairs", "3"), CELLS,
        ("h20/qwen3-8b-fp8", "h20/qwen3-8b-bf16"),
    ),
}  # fmt: skip
FIRST = ("open */journal.bin",)
SECOND = (*FIRST, *FIRST)
STAGES = {
    "its directory is made": ("os.mkdir runs/*",),
    "its record is begun": ("os.rename {record}",),
    "its first run begins": FIRST,
    "its second run begins": SECOND,
    "a request is sent": (*SECOND, "request 2/1"),
    "answers have come": (*SECOND, "request 2/2"),
    "arrivals are written": (*SECOND, "os.rename */arrivals.npz"),
    "the result is written": (*SECOND, "os.rename */result.json"),
    "the run gets its place": (*SECOND, "os.rename {placed}"),
    "the record follows": (*SECOND, "os.rename {placed}", "os.rename {record}"),
}
FEW = ("its first run begins", "answers have come", "the record follows")
FAULTS: list[tuple[type[Disturbance], str]] = [(Kill, stage) for stage in STAGES]
FAULTS += [(kind, stage) for kind in (CtrlC, FullDisk) for stage in FEW]
FAULTS += [
    (CtrlC, "arrivals are written"),
    (Terminate, "answers have come"),
    (ClockStep, "a request is sent"),
]
CODES: dict[type[Disturbance], list[int]] = {
    Kill: [-9],
    ClockStep: [-9],
    CtrlC: [130],
    Terminate: [143],
    FullDisk: [1, 2, 4],
}


class Played(msgspec.Struct, frozen=True):
    """A series in a directory of its own, on servers of one kind."""

    series: Series
    place: Path
    key: str = "preset"  # of each arm's server
    value: str = ""  # the arm's preset if empty

    def begin(self, disturbance: Disturbance | None = None, **on: Any) -> Ended:
        """Run it until it ends or dies."""
        presets = zip("AB", self.series.presets, strict=False)
        arms = [{"name": name, self.key: self.value or preset} for name, preset in presets]
        written(self.place, *arms, seed=7, **self.series.keys)
        (self.place / "up.toml").write_text(LADDER, "utf-8")
        return play(self._words, self.place, disturbance, **on)

    def go_on(self, **on: Any) -> Ended:
        """Run it with --resume, or again where it has no record yet."""
        retry = ["--retry-failed"] if self.series.words[0] == "campaign" else []
        resume = ["--resume", str(found.parent), *retry] if (found := self.find_record()) else []
        return play([*self._words, *resume], self.place, **on)

    def find_record(self) -> Path | None:
        """The file that --resume begins with, from where the command runs."""
        verb = self.series.words[0]
        name = {"gate": "campaign.json", "ladder": "ladder.lock", "bench": "*.*"}.get(verb, f"{verb}.json")
        found = [
            path for path in sorted(self.place.glob(f"runs/*/{name}")) if verb != "bench" or _is_run(path)
        ]
        return next((path.relative_to(self.place) for path in found), None)

    @property
    def _words(self) -> list[str]:
        server = f"--{self.key.replace('_', '-')}={self.value or self.series.presets[0]}"
        return [*self.series.words, *([] if "c.toml" in self.series.words else [server]), "--json"]

    def list_whole(self) -> dict[str, Path]:
        """The runs that count, by their arrivals."""
        results = self.place.glob(f"runs/{self.series.layout.whole}/{run_directory.RESULT}")
        found = [path.parent for path in results]
        if self.series.words[0] in ("ladder", "bench"):  # what failed or was cut off has its run there, too
            loaded = {run: run_directory.load(run) for run in found}
            found = [run for run in found if not loaded[run].records.failed and not loaded[run].facts.partial]
        arrivals = [(run / run_directory.ARRIVALS).read_bytes() for run in found]
        return {hashlib.sha256(each).hexdigest(): run for each, run in zip(arrivals, found, strict=True)}


def _is_run(path: Path) -> bool:
    """Whether a file is of a run that can be resumed: it had begun to send."""
    try:
        run_directory.load(path.parent)
    except UsageError:
        return False
    return path.name in FILES


Undisturbed = Callable[..., Ended]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Each series where nothing happens."""
    place = tmp_path_factory.mktemp("imports")
    file = str(written(place, {"name": "A", "preset": "instant"}, {"name": "B", "preset": "instant"}))
    with virtual_engines():  # what is imported here, each fork has
        for verb in ("campaign", "gate"):
            assert cli.main([verb, file, "--run-dir", str(place), "--quiet"]) == 0
    for series in SERIES.values():
        cli.VERBS[series.words[0]].load()

    @cache
    def play_whole(name: str, on: Any = virtual_engines, *server: str) -> Ended:
        return Played(SERIES[name], tmp_path_factory.mktemp("undisturbed"), *server).begin(on=on)

    return play_whole


# Of this machine and this moment, or how often a run was tried.
VOLATILE = {"started", "finished", "sampled_from_ns", "took_s", "duration_s", "attempts", "command"}
OF_AN_ATTEMPT = re.compile("plan_digest|/attempt$|/notes/")


def made_of(ended: Ended) -> dict[str, Any]:
    """What a command measured, each value by its place in its JSON."""
    return dict(_flatten(json.loads(re.sub(r"\d{8}-\d{6}(-\d)?", "TIME", ended.out)), ""))


def _flatten(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            if key not in VOLATILE:
                yield from _flatten(each, f"{place}/{key}")
    else:  # a clock's last digit is of its distance from its beginning
        yield place, round(value, 7) if isinstance(value, float) else value


@pytest.mark.parametrize(("kind", "stage"), FAULTS)
@pytest.mark.parametrize("name", SERIES)
def test_a_series_that_dies_goes_on(
    name: str, kind: type[Disturbance], stage: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    played = Played(series := SERIES[name], tmp_path)
    names = msgspec.structs.asdict(series.layout)
    cut = played.begin(kind(*(step.format(**names) for step in STAGES[stage])))
    assert "!" in cut.events, cut
    assert cut.code in CODES[kind], cut
    assert "Traceback" not in cut.err
    assert kind is not FullDisk or "No space left on device" in cut.err
    if (
        kind is CtrlC and stage == "arrivals are written"
    ):  # the first waits for the files, the second does not
        assert not any(event.endswith("/result.json") for event in cut.events[cut.events.index("!") :])
    whole = played.list_whole()
    if kind is Terminate or kind is FullDisk:
        found = played.find_record()
        assert found is not None or (series.words[0] == "bench" and stage.endswith("first run begins"))
        assert found is None or f" --resume {found.parent}" in cut.out + cut.err, cut
    assert len(whole) >= cut.runs - 1  # all but the one under way
    assert all(run_directory.load(run).records.ok.all() for run in whole.values())
    aside = {
        path.parent
        for name in FILES
        for path in tmp_path.glob(f"runs/*/{name}")
        if series.words[0] == "bench"
    }
    again, expected = played.go_on(), undisturbed(name)
    aside |= {path.parent for name in FILES for path in tmp_path.glob(f"runs/**/{INTERRUPTED}/**/{name}")}
    unopened = kind is ClockStep or stage.endswith("run begins")  # no journal yet
    assert len(aside - set(whole.values())) >= cut.runs - len(whole) - unopened
    assert all(run_directory.load(run).facts.plan_digest for run in aside)
    assert again.code == expected.code, again
    assert made_of(again) == made_of(expected)
    assert whole.keys() <= played.list_whole().keys()
    assert again.runs == expected.runs - len(whole)
    assert not list(tmp_path.rglob("unfinished"))
    if stage == "the record follows":
        places = [place for place in (tmp_path / "runs").iterdir() if list(place.rglob(RESULT[2:]))]
        proof = play(["verify", *map(str, places)], tmp_path)
        assert proof.code in (0, 12), proof  # arms of one preset look the same


@pytest.mark.parametrize("name", SERIES)
def test_a_series_whose_server_dies_goes_on(name: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    """On a server that it found there; of a search, that load is then one that the server does not bear."""
    played = Played(SERIES[name], tmp_path, "base_url", BASE_URL)
    cut = played.begin(ServerDeath(*STAGES["answers have come"]), on=attached)
    assert "!" in cut.events, cut
    assert "Traceback" not in cut.err
    whole = played.list_whole()
    again, expected = played.go_on(on=attached), undisturbed(name, attached, "base_url", BASE_URL)
    if name == "limit":
        assert json.loads(again.out)["lowest_failing"] == 1
    else:
        assert again.code == expected.code, again
        # Prompts that the server may have in its cache are not sent again.
        found, wanted = (
            {key: value for key, value in made_of(each).items() if not OF_AN_ATTEMPT.search(key)}
            for each in (again, expected)
        )
        assert found == wanted
    if name != "limits, two arms":  # with --retry-failed a search begins again
        assert whole.keys() <= played.list_whole().keys()
