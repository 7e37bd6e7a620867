"""Quality text: the text that is scored by default, and that prompts are cut from.

It was written for this project: stories, letters, a recipe and facts in English, German, French, Spanish,
Chinese, Japanese and Russian; a proof, sums, Python, C, SQL and JSON.
"""

from __future__ import annotations

from pathlib import Path

from loadgen.base.errors import UsageError

_FILE = Path(__file__).with_name("quality_text.txt")
_FEWEST, _MOST = 2000, 16 << 20  # bytes


def read_text(path: Path | None = None) -> str:
    """Read a text of 2,000 bytes to 16 MiB, by default the one that is shipped.

    Raises UsageError where it cannot be read, is not UTF-8, or is of another size.
    """
    try:
        with (path or _FILE).open("rb") as file:
            data = file.read(_MOST + 1)
        text = data.decode()
    except OSError as error:
        raise UsageError(f"--text {path}: {error.strerror or error}: name a file of text") from None
    except UnicodeDecodeError:
        raise UsageError(f"--text {path} is not UTF-8: convert the file to it") from None
    if not _FEWEST <= len(data) <= _MOST:
        raise UsageError(f"--text {path} has {len(data):,} bytes: give {_FEWEST:,} to {_MOST:,}")
    return text
