"""Before its first request a run imports what it needs for that, and its capturing process all of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from builders.loops import read_tables
from fakes.scripted_server import ScriptedServer, api, stream
from fakes.surroundings import OUTPUT, ROOT

# What would make every first request later, and when it is needed.
LATER = read_tables("startup")["later"]
AT_THE_FORK = """if True:
    import os, sys
    def fork():
        print(*sys.modules, flush=True)
        os._exit(0)
    os.fork = fork
    from loadgen.cli import run
    run()
"""
IN_THE_CHILD = """if True:
    import os, sys
    class Imported:
        def find_spec(self, name, path=None, target=None):
            print("imports", name, file=sys.stderr, flush=True)
    def fork(fork=os.fork):
        pid = fork()
        if not pid:
            sys.meta_path.insert(0, Imported())
        return pid
    os.fork = fork
    from loadgen.cli import run
    run()
"""


def bench(script: str, place: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """A run of a few requests of a server of this machine."""
    load = ["--random-input-len", "4", "--random-output-len", str(OUTPUT), "--num-prompts", "4"]
    where = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'servers'}"}
    with ScriptedServer(api(lambda _: stream(OUTPUT, 0.0))) as server:
        argv = ["bench", "--base-url", server.base_url, *load, "--run-dir", str(place), *flags]
        return subprocess.run(
            [sys.executable, "-c", script, *argv],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, **where},
        )


@pytest.mark.whole
def test_nothing_that_is_needed_later_delays_the_first_request(tmp_path: Path) -> None:
    loaded = bench(AT_THE_FORK, tmp_path).stdout.split()
    assert "loadgen.transport.epoll_transport" in loaded
    assert {name: why for name, why in LATER.items() if name in loaded} == {}


@pytest.mark.whole
@pytest.mark.parametrize("transport", ["wire", "httpx"])
def test_the_capturing_process_imports_nothing(tmp_path: Path, transport: str) -> None:
    done = bench(IN_THE_CHILD, tmp_path, "--transport", transport, "--max-concurrency", "2")
    assert done.returncode == 0, done.stderr
    imported = {line.split()[1] for line in done.stderr.splitlines() if line.startswith("imports ")}
    assert imported - {"sniffio"} == set()  # httpcore looks for it each time, installed or not
