"""Point servers: one server after the other, started again only where its settings differ or it has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from msgspec.structs import replace

from loadgen.base import clock
from loadgen.base.errors import LoadgenError, UsageError
from loadgen.plan.profile import Profile
from loadgen.plan.server_settings import FLAGS, ServerSettings, validated
from loadgen.run.bench import attacher
from loadgen.run.options import Options
from loadgen.run.session import Session
from loadgen.run.signals import SIGNALS, Interrupts
from loadgen.study.series.points.typed_values import SWITCHES, typed

_TEXTS = ("arguments", "environment")  # settings that are not a single value


@dataclass
class PointServers:
    """The server that points are measured on; a context manager that ends with what it started."""

    options: Options
    asked: ServerSettings  # of a server that is started; the varied flags are laid over them
    logs: Path  # directory for the logs of servers that are started
    say: Callable[[str], None]  # reports a server that does not end
    interrupts: Interrupts = SIGNALS
    starts_s: list[float] = field(default_factory=list)  # how long each start took
    _stack: ExitStack = field(default_factory=ExitStack)
    _open: tuple[dict[str, str], Session] | None = None

    def __enter__(self) -> PointServers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = None
        self._stack.__exit__(kind, error, trace)

    @property
    def restartable(self) -> bool:
        """Whether a server that has ended can be started again: not one that ran before."""
        return self.options.base_url is None

    def session(self, workload: Profile, serve: Mapping[str, str] | None = None) -> Session:
        """A session with a server that has these flags: the one there is, or one that is started.

        Raises LoadgenError where there is none.
        """
        flags = dict(serve or {})
        if self._open is not None and self._open[0] == flags:
            return self._open[1]
        self.close()
        began_ns = clock.now_ns()
        options = replace(self.options, run_dir=str(self.logs))
        session = attacher(options)(
            options, overlaid(self.asked, flags), workload, self._stack, self.interrupts
        )
        if self.restartable:
            self.starts_s.append((clock.now_ns() - began_ns) / 1e9)
        self._open = flags, session
        return session

    def close(self) -> None:
        """End the server, where it was started here; an error of its end is reported, and is no point's."""
        self._open = None
        stack, self._stack = self._stack, ExitStack()
        try:
            stack.close()
        except LoadgenError as error:
            self.say(f"  {error}")


def overlaid(asked: ServerSettings, serve: Mapping[str, str]) -> ServerSettings:
    """The settings with flags of a server over them; raises UsageError for a value that is not valid.

    A flag with a name of ours, as `context-len`, is that setting; any other is the engine's own, passed as
    `--NAME=VALUE`, `true` and `false` as `--NAME` and `--no-NAME`.
    """
    own: dict[str, object] = {}
    arguments = list(asked.arguments or ())
    for name, value in serve.items():
        key = name.replace("-", "_")
        if key in _TEXTS:
            raise UsageError(f"--serve-param {name}: give single flags of the engine, as max-num-seqs=8,16")
        if key in ServerSettings.model_fields:
            own[key] = typed(value)
        elif (switch := SWITCHES.get(value)) is not None:
            arguments.append(f"--{name}" if switch else f"--no-{name}")
        else:
            arguments.append(f"--{name}={value}")
    if len(arguments) > len(asked.arguments or ()):
        own["arguments"] = tuple(arguments)
    return asked.overlaid(validated(ServerSettings, own, FLAGS))
