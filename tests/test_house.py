"""The house is short to walk through: a plain run from the command to the first byte, and until its end."""

from __future__ import annotations

import operator
import os
import sys
from pathlib import Path
from subprocess import STDOUT, check_output

import pytest

from fakes.surroundings import ROOT

# The functions of loadgen that stand on one another as the measured run's first byte is written. And what a
# reader of a plain run walks through, in the parent process and without imports: files, functions, and calls
# from one file to another; `begun` until the first request, `over` until the end.
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
    def tell(when):
        named = [each for each in functions if not each.co_name.startswith("<")]
        files = {each.co_filename for each in functions}
        print(when, len(files), len(named), moves, file=sys.stderr, flush=True)
    def fork(fork=os.fork):
        tell("begun")
        if pid := fork():
            return pid
        sys.setprofile(None)
        from loadgen.transport.tcp_connection import Pool
        def write_first(pool, slot, write=Pool.write):
            Pool.write, frame, frames = write, sys._getframe(1), ["Pool.write"]
            while frame is not None:
                if frame.f_code.co_filename.startswith(root):
                    frames.append(frame.f_code.co_qualname)
                frame = frame.f_back
            print("frames", *reversed(frames), file=sys.stderr, flush=True)
            return write(pool, slot)
        Pool.write = write_first
        return 0
    def leave(code, leave=os._exit):
        if sys.getprofile() is not None:
            tell("over")
        leave(code)
    os.fork, os._exit = fork, leave
    sys.setprofile(note)
    from loadgen.cli import run
    run()
"""
# Only downwards.
MOST_FRAMES = 12
MOST_BEGUN, MOST_OVER = (62, 330, 310), (110, 1_000, 3_100)


@pytest.mark.whole
def test_a_plain_run_is_short_to_follow(tmp_path: Path) -> None:
    argv = ["bench", "--preset", "instant", "--profile", "smoke", "--quiet", "--run-dir", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'servers'}"}
    command = [sys.executable, "-c", WATCHED, *argv]
    said = [check_output(command, stderr=STDOUT, text=True, timeout=60, env=env) for _ in range(3)]
    runs = [[line.split() for line in each.splitlines() if line] for each in said]
    for run in runs:
        frames = [words for what, *words in run if what == "frames"]
        assert len(frames[-1]) <= MOST_FRAMES, frames  # the warm-up's come first
    for most, what in ((MOST_BEGUN, "begun"), (MOST_OVER, "over")):
        counts = [next(words for name, *words in run if name == what) for run in runs]
        # A slow machine's waits add calls: the fewest of three runs are the run's own.
        fewest = [min(map(int, column)) for column in zip(*counts, strict=True)]
        assert all(map(operator.le, fewest, most)), fewest
