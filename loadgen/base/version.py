"""The version of this package, as it was installed: it follows the tag that it was built at."""

from __future__ import annotations

import os
import sys

_UNKNOWN = "0+unknown"


def read_version(places: list[str]) -> str:
    """Read the version from the first metadata folder of these; "0+unknown" if it is not installed."""
    # Not importlib.metadata, which takes 30 ms to import: as long as all that `loadgen --help` does.
    for place in places:
        try:
            names = os.listdir(place or ".")
        except OSError:
            continue
        for name in names:
            if name.startswith("llm_loadgen-") and name.endswith(".dist-info"):
                return name[len("llm_loadgen-") : -len(".dist-info")]
    return _UNKNOWN


__version__ = read_version(sys.path)
