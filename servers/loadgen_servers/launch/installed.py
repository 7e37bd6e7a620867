"""Where an engine is installed, and its version: asked from its own interpreter, never imported here."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from loadgen_servers import child_process
from loadgen_servers.launch.spec import LaunchError

Version = tuple[int, ...]

# find_spec of a package without a dot finds it and runs none of its code.
# The current directory, the first place of -c's sys.path, is not searched.
_ASK = """
import sys
sys.path[:] = [place for place in sys.path if place]
import importlib.metadata, importlib.util
try:
    print(importlib.metadata.version(sys.argv[1]))
except importlib.metadata.PackageNotFoundError:
    print()
print(*[name for name in sys.argv[2:] if importlib.util.find_spec(name) is None])
"""
_ASK_S = 60.0  # some environments live on slow network disks


class Package(msgspec.Struct, frozen=True):
    """What must be installed for an engine: `name` is both the distribution's and the command's."""

    name: str
    least: Version
    install: str
    modules: tuple[str, ...] = ()  # that it needs in addition


class Installation(msgspec.Struct, frozen=True):
    """An executable, its version (None: unknown), and what its processes need in their environment."""

    path: str
    version: Version | None
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)


def script(package: Package, python: str | None, asks: bool = True) -> Installation:
    """The engine's own command: in `python`'s environment if given, else in this one, else on PATH.

    Raises LaunchError where it is missing, too old, or lacks a module it needs; without `asks` nothing of
    `python` is run, and a command that is missing is only named.
    """
    places = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", "")
    path = shutil.which(package.name, path=os.path.dirname(_executable(python)) if python else places)
    if path is None and not asks:
        return Installation(package.name, None)
    if path is None:
        raise _missing(package, python)
    if python and not asks:
        return _checked(package, path, "", [])
    interpreter = _interpreter_of(path)
    return _checked(package, path, *(_ask(interpreter, package) if interpreter else ("", [])))


def interpreter(package: Package, python: str | None, asks: bool = True) -> Installation:
    """The interpreter that has the engine: `python`'s if given, else this one, else one on PATH.

    Raises LaunchError as `script` does, and runs nothing of `python` without `asks`, as it.
    """
    if python and not asks:
        return _checked(package, _executable(python), "", [])
    for path in [_executable(python)] if python else _interpreters(package.name):
        version, missing = _ask(path, package)
        if version:
            return _checked(package, path, version, missing)
    if not asks:
        return Installation("python3", None)
    raise _missing(package, python)


def _interpreters(name: str) -> Iterator[str]:
    yield sys.executable
    own = shutil.which(name)
    for path in (own and _interpreter_of(own), shutil.which("python3"), shutil.which("python")):
        if path:
            yield path


def _executable(python: str) -> str:
    """The interpreter that `python` names: a file, a command, or a venv's directory."""
    inside = os.path.join(python, "bin", "python")
    path = shutil.which(inside if os.path.isdir(python) else python)
    if path is None:
        wrong = "has no bin/python" if os.path.isdir(python) else "is not an interpreter"
        raise LaunchError(f"--server-python {python} {wrong}: give an interpreter or a venv's directory")
    return os.path.abspath(path)


def _interpreter_of(path: str) -> str | None:
    """A script's interpreter: that of its first line (pipx and conda link to it), else of its directory."""
    try:
        with open(path, "rb") as file:
            first = file.readline(4096).decode(errors="replace")
    except OSError:
        return None
    named = [word for word in first[2:].split() if Path(word).name.startswith("python")]
    neighbour = os.path.join(os.path.dirname(os.path.realpath(path)), "python3")
    return shutil.which(named[0] if first.startswith("#!") and named else neighbour)


def _ask(interpreter: str, package: Package) -> tuple[str, list[str]]:
    """The package's version and missing modules, as its interpreter reports them; empty if it fails."""
    asked = [interpreter, "-c", _ASK, package.name, *package.modules]
    lines = child_process.output(asked, _ASK_S, PYTHONSAFEPATH="1").splitlines()
    return (lines[0].strip(), lines[1].split()) if len(lines) == 2 else ("", [])


def _checked(package: Package, path: str, version: str, missing: list[str]) -> Installation:
    parsed = _parsed(version)
    if parsed is not None and parsed < package.least:
        least = ".".join(map(str, package.least))
        raise LaunchError(f"{package.name} {version} ({path}) is older than {least}: {package.install}")
    if missing:
        raise LaunchError(f"{path} cannot serve without {', '.join(missing)}: {package.install}")
    path = os.path.abspath(path)
    return Installation(path, parsed, _environment(os.path.dirname(path)))


def _parsed(version: str) -> Version | None:
    """The numbers of a release; None if it has none that can be compared."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    if numbers is None:
        return None
    parsed = tuple(map(int, numbers.group().split(".")))
    # A checkout without tags is 0.1.dev1+…, or 0.0.0.dev0, however new it is.
    return None if ".dev" in version and parsed < (0, 2) else parsed


def _environment(directory: str) -> dict[str, str]:
    """PATH as if the venv were activated: engines compile kernels with the ninja of their own venv.

    And neither the engine nor its workers import from the current directory.
    """
    safe = {"PYTHONSAFEPATH": "1"}
    path = os.environ.get("PATH", os.defpath)
    return safe if directory in path.split(os.pathsep) else {"PATH": directory + os.pathsep + path, **safe}


def _missing(package: Package, python: str | None) -> LaunchError:
    where, what_to_do = f"for --server-python {python}", f"with that one, {package.install}"
    if not python:
        where = f"in the environment of {sys.executable} or on PATH"
        what_to_do = f"{package.install}, or give the interpreter that has it with --server-python"
    return LaunchError(f"no {package.name} {where}: {what_to_do}")
