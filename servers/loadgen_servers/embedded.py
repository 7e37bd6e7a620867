"""The embedded engine as a process of its own, for runs that name no server."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import msgspec

_START_S = 20.0
_STOP_S = 5.0


class Listening(msgspec.Struct):
    """What the engine says once it listens."""

    base_url: str
    preset: str = ""
    model: str = ""


class EngineFailed(Exception):
    """The embedded engine did not start; the message is its own last words."""


@dataclass
class Embedded:
    """Starts the engine on a free loopback port and stops it, whatever happens to the caller.

    The engine ends with its standard input, so not even a killed caller leaves it behind.
    """

    arguments: Sequence[str] = ()
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _said: IO[bytes] = field(default_factory=tempfile.TemporaryFile, init=False)

    def __enter__(self) -> Self:
        return self

    def start(self) -> Listening:
        """Start and wait until it listens; raises EngineFailed."""
        source = str(Path(__file__).resolve().parents[1])
        path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "loadgen_servers.engine", "--exit-with-stdin", *self.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,  # a file: nobody would drain a pipe
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the client alone
        )
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], _START_S)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            self.process.kill()
            self.process.wait()
            self._said.seek(0)
            said = self._said.read().decode(errors="replace").strip()
            raise EngineFailed(said or f"no word from it within {_START_S:g} s")
        return msgspec.json.decode(line, type=Listening)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is None:
            self._said.close()
            return
        self.process.terminate()
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self._said):
            if pipe is not None:
                pipe.close()
