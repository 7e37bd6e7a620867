"""Files of prompts, bodies, conversations and traces that cannot be sent: each is refused in a line."""

from __future__ import annotations

from pathlib import Path

from builders.loops import loop_over
from builders.refused_files import RefusedFile, read_stored, refuse


@loop_over("file", read_stored())
def test_a_file_that_cannot_be_sent_is_refused_as_it_is_stored(file: RefusedFile, tmp_path: Path) -> None:
    assert refuse(file, tmp_path) == file["refused"]
    assert "\n" not in file["refused"]
