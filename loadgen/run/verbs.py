"""Verbs: what `loadgen` can do, found in the tables of its folders, and how their modules are imported."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import NamedTuple

MEASURE, READ, PREPARE = "measure", "saved runs, and results that were published", "prepare and check"
# numpy's BLAS starts a thread a core, for sums without matrices, and pydantic scans every installed package
# for plugins when it builds a model.
_NOT_NEEDED = {"OPENBLAS_NUM_THREADS": "1", "PYDANTIC_DISABLE_PLUGINS": "__all__"}


@contextmanager
def importing() -> Iterator[None]:
    """Set variables by which imports in the block start no threads of numpy's and scan for no plugins.

    They are unset afterwards; those that were set already stay.
    """
    added = {name: value for name, value in _NOT_NEEDED.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


class Verb(NamedTuple):
    """A verb of the command; each folder's table VERBS maps names to these, DATA_VERBS words of `data`."""

    group: str  # of --help
    question: str  # that it answers
    place: str  # of its function, which takes the arguments: MODULE, for its `main`, or MODULE:FUNCTION

    def run(self, argv: Sequence[str]) -> int:
        """Import the verb's module and run it, with the garbage collector if it measures nothing."""
        module, _, function = self.place.partition(":")
        with importing():
            loaded = import_module(module)
        command: Callable[[Sequence[str]], int] = getattr(loaded, function or "main")
        if self.group != MEASURE:  # there a signal that comes in a callback of the collector would be lost
            gc.enable()
        return int(command(argv))


def list_questions() -> dict[str, dict[str, str]]:
    """Return, by group of --help, each verb and word of `data` with the question that it answers."""
    words = {f"data {name}": verb for name, verb in find_verbs("DATA_VERBS").items()}
    verbs = {**find_verbs(), **words}
    return {
        group: {name: verb.question for name, verb in verbs.items() if verb.group == group}
        for group in (MEASURE, READ, PREPARE)
    }


def find_verbs(table: str = "VERBS") -> dict[str, Verb]:
    """Import each folder; return the verbs of all by name, those of `run` first, then by folder."""
    here = os.path.dirname(os.path.dirname(__file__))  # pkgutil would import `inspect`, 5 ms of --help
    packages = (each.name for each in os.scandir(here) if os.path.exists(f"{each.path}/__init__.py"))
    folders = sorted(packages, key=lambda name: (name != "run", name))
    tables: list[Mapping[str, Verb]] = [
        getattr(import_module(f"loadgen.{folder}"), table, {}) for folder in folders
    ]
    return {name: verb for rows in tables for name, verb in rows.items()}
