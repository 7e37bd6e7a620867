"""The tiers of the tests: what each may do, how long, with how many examples. `pytest -m TIER` runs one."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# Each test is of one tier; one without a mark is a unit test.
TIERS = ("unit", "whole", "long", "engine")
TIMEOUTS_S = {"long": 300, "engine": 1800}  # the others: pyproject.toml
EXAMPLES = {"unit": 20, "long": 500}  # of each property; those of unit tests are tried again in the long tier


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
    """Two processes for the whole of a tier; one for a part of it and for real engines."""
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return 2 if whole and config.option.markexpr != "engine" else 0


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
