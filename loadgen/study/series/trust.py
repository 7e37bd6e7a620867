"""Trust: what a campaign's file may do that its reader did not write: start programs, read the environment.

A file is a program: it names commands to run, and hosts to send to. docs/security.md argues what is allowed.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.base.urls import is_this_machine
from loadgen.plan import profile
from loadgen.plan.server_settings import ServerSettings
from loadgen.run.credentials import NO_KEY
from loadgen.run.options import Options


class Trust(msgspec.Struct, frozen=True):
    """What the command line allows; a campaign that ships with this tool is allowed everything."""

    launch: bool = False
    variables: tuple[str, ...] = ()
    key_env: str | None = None
    key_file: str | None = None
    shipped: bool = False

    def of(self, path: Path) -> Trust:
        """The same of a certain file."""
        directory = profile.shipped_directory().resolve()
        return replace(self, shipped=path.resolve().is_relative_to(directory))

    @property
    def starts(self) -> bool:
        """Whether servers may be started."""
        return self.launch or self.shipped

    def reads(self, variable: str) -> bool:
        """Whether a variable of the environment may be read."""
        return self.shipped or variable in self.variables

    def with_key(self, options: Options) -> Options:
        """An arm's options with the API key that its server is to get, if any."""
        if self.key_env or self.key_file:
            return replace(options, api_key_env=self.key_env, api_key_file=self.key_file)
        return options if self.gives(options) else replace(options, api_key_env=NO_KEY)

    def gives(self, options: Options) -> bool:
        """Whether a key that was not named explicitly is sent to an arm's server."""
        return self.shipped or all(map(is_this_machine, options.urls))

    @property
    def words(self) -> list[str]:
        """The flags that allow the same."""
        flags = ["--allow-launch"] * self.launch
        flags += [word for variable in self.variables for word in ("--allow-env", variable)]
        flags += ["--api-key-env", self.key_env] if self.key_env else []
        return flags + (["--api-key-file", self.key_file] if self.key_file else [])


def program(options: Options, settings: ServerSettings, asks: bool) -> str:
    """The line that starts an arm's server, or why none does; without `asks` nothing that it names is run."""
    from loadgen.run.launched_server import dry_run  # few commands start servers

    try:
        return dry_run(options, settings, asks)
    except UsageError as error:
        return f"cannot be started here: {error}"
