"""A hundred thousand mutated bundles: none is taken for another one, none crashes, none takes memory."""

from __future__ import annotations

import random
import resource
import tempfile
from pathlib import Path

import pytest

from builders.made_bundles import small_bundle
from fuzzing import fuzz_files
from fuzzing import fuzz_targets_bundles as targets

pytestmark = pytest.mark.long

EACH = 25_000
_MEMORY = Path("/dev/shm")  # a disk would take most of the time
_MOST_KIB = 300 << 10


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    if _MEMORY.is_dir():
        monkeypatch.setattr(tempfile, "tempdir", str(_MEMORY))
    fuzz_files.place.cache_clear()


@pytest.mark.parametrize("seed", range(4))
def test_no_mutated_bundle_has_other_parts(seed: int) -> None:
    draw, raw = random.Random(seed), small_bundle()
    whole = targets.unpacked(raw)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(EACH):
        changed = targets.mutated(raw, draw.randbytes(4 * draw.randrange(1, 4)))
        assert targets.unpacked(changed) in (None, whole)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < _MOST_KIB


def test_odd_sums_and_results_are_refused_or_verified() -> None:
    draw = random.Random(5)
    for _ in range(1000):
        targets.bundle_sums(draw.randbytes(4 * draw.randrange(1, 4)))
        targets.bundled_result(draw.randbytes(3 * draw.randrange(1, 4)))
