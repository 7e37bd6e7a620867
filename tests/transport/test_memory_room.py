"""Memory room: what all answers under way may hold together, and who is cut where they hold more."""

from __future__ import annotations

import resource
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from fakes.scripted_server import HEAD, Answer, Asked, ScriptedServer, chunk, job_of, stream, token
from loadgen.transport import capture_process
from loadgen.transport.failure import FailureKind
from loadgen.transport.memory_room import MIB, limit_open_bytes

STATUS = "VmSize:\t 102400 kB\nVmData:\t 51200 kB\n"


def machine(root: Path, **files: str) -> Path:
    """A root with what the system says of this process in `proc/self`, and of its group."""
    for name, text in {"proc/self/status": STATUS, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def _free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 8 GiB free, and no limit on a process."""
    memory = psutil.virtual_memory()._replace(available=8192 * MIB)
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)


@pytest.mark.usefixtures("_free")
@pytest.mark.parametrize(
    ("streams", "longest", "processes", "room"),
    [
        (64, 8, 1, 514 * MIB),  # what was asked for, and room for some that are longer
        (4096, 1024, 1, 2048 * MIB),  # a fourth of what is free
        (4096, 1024, 4, 512 * MIB),  # of which each process has its part
    ],
)
def test_answers_may_hold_what_was_asked_for_and_a_fourth_of_what_is_free(
    streams: int, longest: int, processes: int, room: int, tmp_path: Path
) -> None:
    assert limit_open_bytes(streams, longest, processes, machine(tmp_path)) == room


@pytest.mark.usefixtures("_free")
@pytest.mark.parametrize(
    ("files", "room"),
    [
        (
            {
                "proc/self/cgroup": "0::/job\n",
                "sys/fs/cgroup/job/memory.max": f"{600 * MIB}\n",
                "sys/fs/cgroup/job/memory.current": f"{300 * MIB}\n",
                "sys/fs/cgroup/job/memory.stat": f"anon 5\ninactive_file {100 * MIB}\n",
            },
            100 * MIB,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,memory:/job\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{400 * MIB}\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{200 * MIB}\n",
            },
            50 * MIB,
        ),
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.max": "max\n"}, 514 * MIB),
        ({"proc/self/cgroup": "0::/../../etc\n"}, 514 * MIB),
    ],
    ids=["version 2", "version 1", "no limit", "a place outside"],
)
def test_a_control_group_is_the_machine(files: dict[str, str], room: int, tmp_path: Path) -> None:
    assert limit_open_bytes(64, 8, root=machine(tmp_path, **files)) == room


@pytest.mark.usefixtures("_free")
def test_a_limit_of_the_process_counts_what_it_holds_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {resource.RLIMIT_AS: 600 * MIB, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limits[which],) * 2)
    assert limit_open_bytes(64, 8, root=machine(tmp_path)) == 125 * MIB


@pytest.mark.whole
@pytest.mark.parametrize("transport", ["wire", "httpx"])
def test_the_largest_answers_are_cut_and_the_others_go_on(transport: str) -> None:
    endless = chunk(token() * 100) * 50

    def script(asked: Asked) -> Answer:
        return Answer([HEAD, *[endless] * 5000]) if asked.number < 4 else stream(3, gap_s=0.02)

    with ScriptedServer(script) as flooding:
        job = job_of(flooding.target(), 24, 8)
        job = replace(job, limits=replace(job.limits, open_bytes=16 * MIB))
        run = capture_process.start_capture(job, transport)
        captures = [capture for capture in run.captures() if capture is not None]
    capture_process.reap_ended()
    assert run.died == ""
    kinds = [capture.failure and capture.failure.kind for capture in captures]
    assert kinds.count(FailureKind.MEMORY) == 4
    assert kinds.count(None) == 20
    (why,) = {capture.failure.detail.partition(": ")[2] for capture in captures if capture.failure}
    assert why == "the responses under way held more than the 16 MiB that this client may use for them"
