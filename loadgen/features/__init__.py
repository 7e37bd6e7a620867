"""Features: each is a folder whose rows join the tables of the core, which names none of them.

A feature imports the core and no other feature; the core reaches it through `contributed` alone.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

# By feature: the tables of the core that it adds to, and its module with the rows.
FEATURES: dict[str, dict[str, str]] = {
    "traces": {"settings": "trace_settings"},
    "shapes": {},
    "sessions": {"settings": "session_settings"},
    "data": {"settings": "data_settings"},
    "shards": {},
    "targets": {},
}


def contributed(table: str) -> list[ModuleType]:
    """The modules with the features' rows of a table, in the order of the features."""
    return [
        import_module(f"loadgen.features.{name}.{tables[table]}")
        for name, tables in FEATURES.items()
        if table in tables
    ]
