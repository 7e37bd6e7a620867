"""The tiers of the tests: what each may do, how long, with how many examples. `pytest -m TIER` runs one."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Each test is of one tier; one without a mark is a unit test.
TIERS = ("unit", "whole", "long", "engine")
TIMEOUTS_S = {"whole": 120, "long": 300, "engine": 1800}  # of unit: pyproject.toml
WORKERS = {"unit": 2, "whole": 4, "long": 2, "engine": 0}  # processes; the tests of `whole` mostly wait
EXAMPLES = {"unit": 20, "long": 300}  # of each property; those of unit tests are tried again in the long tier

LONGEST_SLEEP_S = 0.01  # of a unit test: another thread is let run, nothing is waited for
_STARTS_A_PROCESS = {"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec", "subprocess.Popen"}


class Guard:
    """What holds a unit test to its tier: it may start no process, nor sleep on the real clock.

    Waits for a socket, a lock or an event are not seen: with a peer in the same process they last no longer
    than its work.
    """

    def __init__(self) -> None:
        self.test = ""  # that runs, if it is a unit test

    def audit(self, event: str, arguments: tuple[object, ...]) -> None:
        """Refuse what starts a process, by Python's audit events."""
        if self.test and event in _STARTS_A_PROCESS:
            self._refuse(f"starts a process ({event} {arguments[:2]})")

    def sleep(self, seconds: float) -> None:
        """Sleep where a test may."""
        if self.test and seconds > LONGEST_SLEEP_S:
            self._refuse(f"sleeps for {seconds} s on the real clock")
        _sleep(seconds)

    def _refuse(self, what: str) -> None:
        test, self.test = self.test, ""  # what reports the failure may do the like
        pytest.fail(f"{test} is a unit test and {what}: mark it with @pytest.mark.whole")


# Once a process: an audit hook cannot be taken away.
_GUARD = Guard()
_sleep = time.sleep
time.sleep = _GUARD.sleep  # type: ignore[assignment]
sys.addaudithook(_GUARD.audit)


def pytest_configure(config: pytest.Config) -> None:
    """Choose how many examples a property is tried with."""
    for tier, examples in EXAMPLES.items():
        settings.register_profile(
            tier,
            max_examples=examples,
            deadline=None,  # a busy machine is not a fault of the code
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
    settings.load_profile("long" if _is_long(config) else "unit")


def _is_long(config: pytest.Config) -> bool:
    return bool(config.option.markexpr == "long")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Several processes for the whole of a tier; one for a part of it and for real engines."""
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return WORKERS.get(config.option.markexpr, 2) if whole else 0


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give each test its tier, and the time that a test of the tier may take."""
    torn = []
    for item in items:
        tiers = {mark.name for mark in item.iter_markers() if mark.name in TIERS}
        if len(tiers) > 1:
            torn.append(f"{item.nodeid}: {', '.join(sorted(tiers))}")
        tier = next(iter(tiers), "unit")
        if tier == "unit" and _is_long(config) and hasattr(getattr(item, "obj", None), "hypothesis"):
            tier = "long"
        if not tiers:
            item.add_marker(tier)
        if tier in TIMEOUTS_S and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TIMEOUTS_S[tier]))
    if torn:
        raise pytest.UsageError("a test is of one tier: " + "; ".join(torn))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Hold a unit test to its tier while it runs, its fixtures too."""
    _GUARD.test = item.name if item.get_closest_marker("unit") else ""
    try:
        return (yield)
    finally:
        _GUARD.test = ""
