"""Install: the size of the core on a fresh machine, and whether aarch64 needs a compiler for it."""

from __future__ import annotations

import json
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.clients.adapters import Installed
from benchmarks.harness.page import Bar, Section
from benchmarks.harness.process import ROOT, Command, CouldNotRun, run

_MOST_BYTES = 115_000_000
_LARGEST = 8
_NOT_COUNTED = ("pip", "setuptools", "_distutils_hack", "distutils-precedence.pth", "pkg_resources")
_HEAVY = {"torch", "scipy", "matplotlib", "transformers", "ray", "pandas"}
_AARCH64 = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
_PYTHONS = ("3.11", "3.12", "3.13")
_OURS = "llm-loadgen"
_LIMIT_S = 600.0


@dataclass(frozen=True)
class Wheels:
    """The wheels that one Python on aarch64 would install; `fault` is why it could not."""

    python: str
    binary: Sequence[str] = ()
    pure: Sequence[str] = ()
    fault: str = ""


def install(installed: Installed, repeats: int) -> Section:
    """A fresh environment with this checkout and nothing else, from wheels alone; once."""
    with tempfile.TemporaryDirectory() as name:
        python = _environment(Path(name) / "venv")
        site = Path(
            run(
                Command([python, "-c", "import sysconfig as s; print(s.get_path('purelib'))"], {})
            ).stdout.strip()
        )
        sizes = {path.name: _allocated(path) for path in site.iterdir() if path.name not in _NOT_COUNTED}
        packages = _packages(python)
        wheels = [_wheels(python, version, packages, Path(name)) for version in _PYTHONS]
    total = sum(size for entry, size in sizes.items() if not entry.startswith(("pip-", "setuptools-")))
    heavy = sorted(_HEAVY & {package.lower() for package in packages})
    faults = [wheel for wheel in wheels if wheel.fault]
    here = "x86-64" if platform.machine() == "x86_64" else platform.machine()
    count = f"{len(packages)} packages"
    wanted = "torch, scipy, plotting, transformers, Ray"
    megabytes = f"{total / 1e6:.1f} MB"
    bars = [
        Bar("core install by `du`, pip and setuptools aside", megabytes, "≤ 115 MB", total <= _MOST_BYTES),
        Bar(f"core install: {wanted}", ", ".join(heavy) or "none", "none", not heavy),
        Bar(f"core install from wheels alone, {here}", count, "no compiler", True),
        Bar("the same set as wheels for Linux aarch64", _aarch64_words(wheels), "no compiler", not faults),
    ]
    return Section("Install", bars, _lines(sizes, wheels))


def _environment(venv: Path) -> str:
    """A fresh virtual environment with this checkout installed; its Python."""
    run(Command([sys.executable, "-m", "venv", str(venv)], {}))
    python = str(venv / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
    try:
        run(Command([*pip, str(ROOT)], {"PYTHONPATH": ""}), _LIMIT_S)
    except CouldNotRun as error:
        raise CouldNotRun(f"pip could not install this checkout from wheels alone: {error}") from None
    return python


def _packages(python: str) -> dict[str, str]:
    """Name and version of the installed packages but the project itself."""
    argv = [python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]
    stdout = run(Command(argv, {"PYTHONPATH": ""})).stdout
    rows: list[dict[str, str]] = json.loads(stdout[stdout.index("[") : stdout.rindex("]") + 1])
    tools = {"pip", "setuptools", _OURS}
    return {row["name"]: row["version"] for row in rows if row["name"] not in tools}


def _wheels(python: str, version: str, packages: dict[str, str], scratch: Path) -> Wheels:
    """Ask pip which wheels it would install for one Python on aarch64; nothing is installed."""
    report = scratch / f"report-{version}.json"
    argv = [python, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
    argv += ["--disable-pip-version-check", "--only-binary=:all:", "--target", str(scratch / "target")]
    argv += [word for tag in _AARCH64 for word in ("--platform", tag)]
    argv += ["--python-version", version, "--report", str(report)]
    argv += [f"{name}=={number}" for name, number in packages.items()]
    try:
        run(Command(argv, {"PYTHONPATH": ""}), _LIMIT_S)
    except CouldNotRun as error:
        return Wheels(version, fault=str(error))
    resolved: dict[str, Any] = json.loads(report.read_text("utf-8"))
    urls = {item["metadata"]["name"]: str(item["download_info"]["url"]) for item in resolved["install"]}
    pure = sorted(name for name, url in urls.items() if url.endswith("-none-any.whl"))
    return Wheels(version, sorted(set(urls) - set(pure)), pure)


def _lines(sizes: dict[str, int], wheels: Sequence[Wheels]) -> list[str]:
    largest = sorted(sizes.items(), key=lambda entry: -entry[1])[:_LARGEST]
    lines = [
        "MB in site-packages: " + ", ".join(f"`{entry}` {size / 1e6:.1f}" for entry, size in largest) + "."
    ]
    for wheel in wheels:
        if wheel.fault:
            lines += ["", f"aarch64, Python {wheel.python}: {wheel.fault}."]
    return lines


def _aarch64_words(wheels: Sequence[Wheels]) -> str:
    missing = [wheel.python for wheel in wheels if wheel.fault]
    if missing:
        return f"not for Python {', '.join(missing)}"
    return f"{len(wheels[0].binary)} binary, {len(wheels[0].pure)} pure, Python {', '.join(_PYTHONS)}"


def _allocated(path: Path) -> int:
    """Bytes on disk of a file or tree, as `du` counts them."""
    paths = [path, *path.rglob("*")] if path.is_dir() else [path]
    return sum(entry.lstat().st_blocks * 512 for entry in paths)
