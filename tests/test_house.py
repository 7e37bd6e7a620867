"""The house is short to walk through: a plain run from the command to the first byte, and until its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.surroundings import ROOT

# The functions of loadgen that stand on one another as the measured run's first byte is written; and of the
# whole run, in the parent process and without imports, the functions and the calls from one file to another.
WATCHED = """if True:
    import os, sys
    import loadgen
    root = os.path.dirname(loadgen.__file__)
    functions, moves, importing = set(), 0, 0
    def note(frame, event, argument):
        global moves, importing
        code = frame.f_code
        if code.co_name == "<module>":
            importing += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not importing and code.co_filename.startswith(root):
            functions.add(code)
            called_by = frame.f_back.f_code.co_filename
            moves += called_by.startswith(root) and called_by != code.co_filename
    def fork(fork=os.fork):
        pid = fork()
        if not pid:
            sys.setprofile(None)
            from loadgen.transport.tcp_connection import Pool
            write = Pool.write
            def write_first(pool, slot):
                Pool.write, frame, frames = write, sys._getframe(1), ["Pool.write"]
                while frame is not None:
                    if frame.f_code.co_filename.startswith(root):
                        frames.append(frame.f_code.co_qualname)
                    frame = frame.f_back
                print("frames", *reversed(frames), file=sys.stderr, flush=True)
                return write(pool, slot)
            Pool.write = write_first
        return pid
    def leave(code, leave=os._exit):
        if sys.getprofile() is not None:
            named = [each for each in functions if not each.co_name.startswith("<")]
            print("counts", len(named), moves, file=sys.stderr, flush=True)
        leave(code)
    os.fork, os._exit = fork, leave
    sys.setprofile(note)
    from loadgen.cli import run
    run()
"""
# Only downwards.
MOST_FRAMES, MOST_FUNCTIONS, MOST_MOVES = 12, 1_150, 6_700


@pytest.mark.whole
def test_a_plain_run_is_short_to_follow(tmp_path: Path) -> None:
    argv = ["bench", "--preset", "instant", "--profile", "smoke", "--quiet", "--run-dir", str(tmp_path)]
    where = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'servers'}"}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *argv],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, **where},
    )
    lines = [line.split() for line in done.stderr.splitlines()]
    *_, frames = (line[1:] for line in lines if line[0] == "frames")  # the warm-up's come first
    assert len(frames) <= MOST_FRAMES, " · ".join(frames)
    ((_, functions, moves),) = (line for line in lines if line[0] == "counts")
    assert int(functions) <= MOST_FUNCTIONS
    assert int(moves) <= MOST_MOVES
