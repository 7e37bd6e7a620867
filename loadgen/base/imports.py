"""Imports: of libraries that would do more than is needed of them unless the environment forbids it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

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
