"""A client as a process of its own against a scripted server, and what is left of its run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fakes.scripted_server import Answer, Asked, ScriptedServer, api, stream
from loadgen.report import run_directory as result
from loadgen.report.run_directory import ARRIVALS, REPORT, RESULT, Result

ROOT = Path(__file__).parents[2]
JOURNAL = "journal.bin"
PATIENCE_S = 60.0  # for a process on a busy machine
START_S = 30.0
JOURNAL_S = 2.0  # a quarter of it is promised: a busy machine may take longer
INPUT, OUTPUT, GAP_S = 5, 3, 0.01
LOAD = [
    "--random-input-len",
    str(INPUT),
    "--random-output-len",
    str(OUTPUT),
    "--no-observe",
    "--run-dir",
    "runs",
]
# Lines of the display at once, not every ten seconds.
TALKATIVE = (
    "import loadgen.run.command.progress as live, loadgen.cli as cli; live._LINE_EVERY_NS = 0; cli.run()"
)


@dataclass
class Service:
    """A server that answers each request after some ms and notes when the client had read each answer."""

    answer: Callable[[Asked], Answer] = lambda _: stream(OUTPUT, GAP_S)
    requests: int = 0
    read_s: list[float] = field(default_factory=list)  # monotonic, when a request came after an answer
    base_url: str = ""

    @contextmanager
    def serving(self) -> Iterator[Service]:
        """The server, while it is up."""

        def answer(asked: Asked) -> Answer:
            self.requests += 1
            if asked.on_connection:
                self.read_s.append(time.monotonic())
            return self.answer(asked)

        with ScriptedServer(api(answer)) as server:
            self.base_url = server.base_url
            yield self

    def until(self, requests: int) -> None:
        """Wait until so many requests have come."""
        wait(lambda: self.requests >= requests, f"{requests} requests")

    def read_before(self, at_s: float) -> int:
        """How many answers the client had read by then."""
        return sum(read_s < at_s for read_s in self.read_s)

    def journalled(self, at_s: float) -> int:
        """How many answers the client had read so long before that its journal has them."""
        return self.read_before(at_s - JOURNAL_S)

    def until_journalled(self, answers: int) -> None:
        """Wait until so many answers are in the client's journal."""
        wait(lambda: self.journalled(time.monotonic()) >= answers, f"{answers} journalled answers")


def killed(client: subprocess.Popen[Any], service: Service, after: int) -> float:
    """Kill a client with -9 once it has journalled `after` answers; when that was (monotonic, s)."""
    service.until_journalled(after)
    at_s = time.monotonic()
    os.kill(client.pid, signal.SIGKILL)
    assert ended(client).code == -signal.SIGKILL
    return at_s


def wait(holds: Callable[[], object], what: str, most_s: float = START_S) -> None:
    """Wait until something holds, and fail where it does not."""
    deadline_s = time.monotonic() + most_s
    while not holds():
        assert time.monotonic() < deadline_s, f"no {what} after {most_s:g} s"
        time.sleep(0.01)


def environment(**more: str) -> dict[str, str]:
    """This one's, so that a child imports this checkout."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "servers")]), **more}


def argv(base_url: str, requests: int, *more: str, code: str = "") -> list[str]:
    """The words of a run of two slots."""
    start = ["-c", code] if code else ["-m", "loadgen"]
    words = ["bench", "--base-url", base_url, *LOAD, "--num-prompts", str(requests), *more]
    return [sys.executable, *start, *words, *([] if "--request-rate" in more else ["--max-concurrency", "2"])]


def started(words: Sequence[str], place: Path, **environ: str) -> subprocess.Popen[bytes]:
    """A process that leads a group of its own, and ignores no signal though this one may (under nohup)."""
    return subprocess.Popen(
        words,
        cwd=place,
        env=environment(**environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=_heed_signals,
    )


def _heed_signals() -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it printed."""

    code: int
    out: str
    err: str


def ended(process: subprocess.Popen[bytes]) -> Ended:
    """Wait for its end; nothing of its group is left."""
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
        wait(lambda: not alive(process.pid), "end of the group")
    finally:
        if alive(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return Ended(process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def alive(group: int) -> bool:
    """Whether a process of the group runs."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return any(_group(pid) == group for pid in os.listdir("/proc") if pid.isdigit())


def members(group: int) -> list[int]:
    """The processes of a group, its leader first."""
    found = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _group(pid) == group]
    return sorted(found, key=lambda pid: (pid != group, pid))


def _group(pid: str) -> int:
    """The group of a process that is no zombie; 0 where there is none."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if after_name[0] == "Z" else int(after_name[2])


def shell(line: str, place: Path, words: Sequence[str], **environ: str) -> Ended:
    """Run the words as a shell line writes them: `"$@"`."""
    return ended(started(["bash", "-c", line, "shell", *words], place, **environ))


def run_directory(place: Path) -> Path:
    """The one run under a place."""
    (directory,) = (place / "runs").iterdir()
    return directory


def whole(place: Path) -> Result:
    """The run of a directory that was finished: every file is there, and no journal."""
    directory = run_directory(place)
    assert {RESULT, ARRIVALS, REPORT} <= {path.name for path in directory.iterdir()}
    assert not (directory / JOURNAL).exists()
    assert not [path.name for path in directory.iterdir() if path.name.startswith((".", "tmp"))]
    return result.load(directory)


def assert_adds_up(run: Result, planned: int) -> dict[str, Any]:
    """Planned = succeeded + failed by kind + never sent; the figures by name."""
    metrics = run.metrics
    failed = sum(tally.count for tally in metrics.failures.values())
    assert metrics.requests == metrics.completed + failed == len(run.records)
    assert run.facts.requests == planned >= metrics.requests
    return {"completed": metrics.completed, "failed": failed, "kinds": set(metrics.failures)}


def succeeded(text: str) -> int:
    """The successful requests of the one report in a text."""
    (line,) = (line for line in text.splitlines() if line.startswith("Successful requests:"))
    return int(line.split()[2])


def report(place: Path) -> Ended:
    """What `loadgen report` says of the one run."""
    words = [sys.executable, "-m", "loadgen", "report", str(run_directory(place))]
    return ended(started(words, place))
