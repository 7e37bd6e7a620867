"""The version of this package, as it was installed: it follows the tag that it was built at."""

from __future__ import annotations

import sys
from importlib import metadata


def read_version(places: list[str]) -> str:
    """Read the version from the first metadata of these folders; "0+unknown" if it is not installed."""
    found = metadata.distributions(name="llm-loadgen", path=places)
    return next((each.version for each in found), "0+unknown")


__version__ = read_version(sys.path)
