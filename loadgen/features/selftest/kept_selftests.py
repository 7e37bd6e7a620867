"""Kept self-tests: this client's last self-tests on this machine, and the doubts that rest on one of them."""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
from pydantic import BaseModel, ValidationError

from loadgen.base import files, untrusted
from loadgen.base.rule import Evidence, Origin, Source, note, suspect
from loadgen.base.structs import replace
from loadgen.facts.run_facts import HEADROOM, HELD_PERCENT, Calibration, Facts
from loadgen.verdict.evidence import RunEvidence, limit_doubts

# These move the client's figures; the rest of the environment may change under a calibration.
_DECIDING = ("cpu", "cpus", "machine", "platform", "python", "loadgen", "httpx", "httptools", "numpy")
_LOG = logging.getLogger("loadgen")
_LOG.addHandler(logging.NullHandler())  # a library prints nothing of its own accord
_MOST_BYTES = 1 << 20  # of the cache; each self-test has half a kilobyte


class _Cache(BaseModel, extra="forbid"):
    """The cache file: the latest of each transport, environment and number of workers."""

    format: Literal[1] = 1
    calibrations: tuple[Calibration, ...] = ()


def add_calibration(facts: Facts) -> Facts:
    """Add the errors of this client's last self-test here to the facts, if there was one."""
    client = facts.client
    known = read_remembered(client.transport, environment_digest(facts.environment), client.workers)
    return replace(facts, calibration=known)


def environment_digest(facts: Mapping[str, str]) -> str:
    """Hash those facts of `describe_machine()` that move figures, to match stored self-tests."""
    named = msgspec.json.encode([[name, facts.get(name, "")] for name in _DECIDING])
    return hashlib.blake2b(named, digest_size=8).hexdigest()


def cache_path() -> Path:
    """Return the file of stored self-tests: $XDG_CACHE_HOME or ~/.cache, then loadgen/selftest.json."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "loadgen" / "selftest.json"


def read_remembered(transport: str, environment: str, workers: int = 1) -> Calibration | None:
    """Read a transport's last self-test in an environment by N workers, else by one; None without one."""
    kept = _read()
    return kept.get((transport, environment, workers)) or kept.get((transport, environment, 1))


def remember(measured: Iterable[Calibration]) -> bool:
    """Store self-tests in the cache, replacing older ones; on failure warn and return False."""
    path = cache_path()
    latest = _read() | {_key(each): each for each in measured}
    cache = _Cache(calibrations=tuple(latest.values()))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.write_text(path, cache.model_dump_json(indent=1))
    except OSError as error:
        _LOG.warning("the self-test's result is not stored: %s: %s", path, error.strerror)
        return False
    return True


def _key(each: Calibration) -> tuple[str, str, int]:
    return each.transport, each.environment, each.workers


def _read() -> dict[tuple[str, str, int], Calibration]:
    """Read the cache by (transport, environment, workers); if damaged, warn and return {}."""
    path = cache_path()
    try:
        cache = _Cache.model_validate_json(untrusted.read_file_bytes(path, _MOST_BYTES))
        return {_key(each): each for each in cache.calibrations}
    except FileNotFoundError:
        return {}
    except OSError as error:
        why = error.strerror or type(error).__name__
    except ValidationError as error:
        why = f"it is damaged: {error.errors()[0]['msg']}"
    _LOG.warning("earlier self-tests are ignored: %s: %s", path, why)
    return {}


def _find_load(run: RunEvidence, above: float, most: float) -> Evidence | None:
    """Find evidence that the messages per second are `above` to `most` times the self-test's capacity.

    Beyond the capacity there is none if the self-test found no limit.
    """
    measured, rate_per_s, workers = run.calibration, run.metrics.messages_per_s, run.facts.client.workers
    room = measured.headroom(rate_per_s, workers) if measured else math.inf
    if measured is None or not 1 / most <= room < 1 / above or (room < 1 and not measured.capacity_bounded):
        return None
    error = f"P99 gap error under {HELD_PERCENT:g} %"
    held = f"the self-test kept the {error} up to {measured.capacity_of(workers):.0f}"
    if workers != measured.workers:
        held += f" ({workers} times what one worker held)"
    none = f"no load of the self-test had a {error}"
    return f"{rate_per_s:.0f} chunks/s; {held if measured.capacity_tokens_per_s else none}"


beyond_capacity = suspect(
    "beyond-capacity",
    "more chunks per second than the self-test could measure with a P99 gap error under 5 %",
    "use --transport wire, more --workers where there are cores for them, or several machines (--shard)",
    Source.SELFTEST,
    Origin.CLIENT,
)(partial(_find_load, above=1.0, most=math.inf))
headroom = note(
    "headroom",
    f"over 1/{HEADROOM} of the chunks per second that the self-test could measure",
    "see `loadgen selftest` for the error at this load",
    Source.SELFTEST,
)(partial(_find_load, above=1 / HEADROOM, most=1.0))


limit = partial(limit_doubts, ("calibration",))
