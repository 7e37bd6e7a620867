"""Outputs of stored data are as they were stored, by `scripts/snapshots.py OUT --store`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import snapshots

from builders.lint import ROOT

OTHER_PYTHON = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="argparse of Python 3.11 wrote the stored help"
)


@OTHER_PYTHON
@pytest.mark.long
def test_every_output_of_stored_data_is_as_stored(tmp_path: Path) -> None:
    """In a process of its own: it changes the environment and the directory, and imports nothing of tests."""
    command = [sys.executable, str(ROOT / "scripts" / "snapshots.py"), str(tmp_path / "out")]
    path = os.pathsep.join([str(ROOT), str(ROOT / "servers")])
    subprocess.run(command, cwd=tmp_path, env={"PATH": "", "PYTHONPATH": path}, check=True)
    changes = [*snapshots.list_changes(tmp_path / "out")]
    again = ".venv/bin/python scripts/snapshots.py OUT --store"
    assert not changes, "\n".join([f"{len(changes)} outputs: if all are wanted, `{again}`", *changes])


def test_a_changed_output_is_named_with_its_diff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "TEXTS", ("help/*",))
    out, stored = tmp_path / "out", tmp_path / "stored"
    (out / "help").mkdir(parents=True)
    for name in ("help/bench.txt", "gone.txt", "digest.txt"):
        (out / name).write_text("a\nof 0.12345678901234567\nz\n", "utf-8")
    snapshots.store_outputs(out, stored)
    (out / "digest.txt").write_text("a\nof 0.12345678901234568\nz\n", "utf-8")  # by another processor
    assert [*snapshots.list_changes(out, stored)] == []
    for name in ("help/bench.txt", "new.txt", "digest.txt"):
        (out / name).write_text("a\nb\nz\n", "utf-8")
    (out / "gone.txt").unlink()
    assert [*snapshots.list_changes(out, stored)] == [
        "digest.txt has changed",
        "gone.txt is no longer written",
        "help/bench.txt has changed\n--- stored\n+++ now\n@@ -1,3 +1,3 @@\n a\n-of 0.123456789012\n+b\n z",
        "new.txt is new",
    ]
