"""The embedded servers as processes: the engine, for runs without a server, and the null server."""

from __future__ import annotations

import select
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Self

import msgspec

from loadgen_servers import child_process

ENGINE = "loadgen_servers.engine"
NULL = "loadgen_servers.null"
_START_S = 20.0
_STOP_S = 5.0


class Listening(msgspec.Struct):
    """What the server prints once it listens."""

    base_url: str
    preset: str = ""
    model: str = ""


class EngineFailed(Exception):
    """The server did not start; the message is the end of its output."""


@dataclass
class Embedded:
    """Starts a server on a free loopback port and stops it.

    The server ends when its standard input does, so that it ends even when its caller is killed.
    """

    arguments: Sequence[str] = ()
    module: str = ENGINE
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _errors: IO[bytes] = field(default_factory=tempfile.TemporaryFile, init=False)

    def __enter__(self) -> Self:
        return self

    def start(self) -> Listening:
        """Start and wait until it listens; raises EngineFailed."""
        self.begin()
        return self.listening()

    def begin(self) -> None:
        """Start its process."""
        self.process = subprocess.Popen(
            child_process.command(self.module, "--exit-with-stdin", *self.arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,  # a file, since no one would read a pipe
            env=child_process.needed(),
            start_new_session=True,  # Ctrl-C is for the client alone
        )
        child_process.share_cores_evenly(self.process.pid)

    def listening(self) -> Listening:
        """Wait until it listens; raises EngineFailed."""
        assert self.process is not None
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], _START_S)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            self.process.kill()
            self.process.wait()
            self._errors.seek(0)
            output = self._errors.read().decode(errors="replace").strip()
            silence = "it ended without output" if ready else f"no output within {_START_S:g} s"
            raise EngineFailed(output or silence)
        return msgspec.json.decode(line, type=Listening)

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the server and wait until it has ended; a second call does nothing."""
        process, self.process = self.process, None
        if process is not None:
            process.terminate()
            assert process.stdout is not None
            select.select([process.stdout], [], [], _STOP_S)  # it closes as the process ends
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self._errors.close()
