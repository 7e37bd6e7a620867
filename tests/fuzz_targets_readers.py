"""Functions of bytes for `python -m fuzz` and the suite: readers of files and servers; each must return."""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path

import numpy as np

from loadgen import as_run, cli, csv_text, environment, http1, plain_text
from loadgen import exposition as prometheus
from loadgen import profile as profiles
from loadgen import sse as events
from loadgen.campaign import file as campaigns
from loadgen.errors import UsageError
from loadgen.others import pages, sources

_PLACE = Path(tempfile.gettempdir()) / "loadgen-fuzz"


def _written(data: bytes, name: str) -> Path:
    _PLACE.mkdir(exist_ok=True)
    path = _PLACE / name
    path.write_bytes(data)
    return path


def page(data: bytes) -> None:
    """Pasted blocks."""
    pages.read(data.decode("utf-8", "replace"), Path("x.md"))


def results(data: bytes) -> None:
    """A file of anybody's results; damage must be named by its reader, not by the last resort."""
    with contextlib.suppress(UsageError):
        sources.read([str(_written(data, "results"))])


def profile(data: bytes) -> None:
    """A profile."""
    with contextlib.suppress(UsageError):
        profiles.load(str(_written(data, "profile.toml")), {})


def campaign(data: bytes) -> None:
    """A campaign's file."""
    with contextlib.suppress(UsageError):
        campaigns.load(_written(data, "campaign.toml"))


def _verb(*words: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert cli.main(words) in (0, 1, 2)
    said = out.getvalue() + err.getvalue()
    assert plain_text.plain(said) == said


def compare(data: bytes) -> None:
    """`loadgen compare` of a file."""
    _verb("compare", str(_written(data, "compare")), "--json")
    _verb("compare", str(_PLACE / "compare"))


def audit(data: bytes) -> None:
    """`loadgen audit` of a file."""
    _verb("audit", str(_written(data, "audit")))
    _verb("audit", str(_PLACE / "audit"), "--json")


def text(data: bytes) -> None:
    """What may be printed, written and named."""
    said = data.decode("utf-8", "surrogateescape")
    assert plain_text.plain(plain_text.plain(said)) == plain_text.plain(said)
    plain_text.plain(said).encode()
    plain_text.json_text({said: said}).encode()
    assert (Path("d") / plain_text.file_name(said)).parent == Path("d")
    csv_text.csv_text([[said, said]]).encode()


def hide(data: bytes) -> None:
    """Secrets in a line."""
    environment.hide(data.decode("utf-8", "replace"))


def exposition(data: bytes) -> None:
    """/metrics."""
    prometheus.parse(prometheus.select(200, data))


def http(data: bytes) -> None:
    """Heads and framings."""
    http1.read_head(data)
    http1.unframe(data, np.array([len(data) // 2, len(data)], np.int64))


def sse(data: bytes) -> None:
    """A body's events, whole or cut."""
    for whole in (True, False):
        events.read(data, whole)
        events.split(data, whole)


def logs(data: bytes) -> None:
    """An engine's log."""
    as_run.parse(data.decode("utf-8", "replace"))


def server_info(data: bytes) -> None:
    """An engine's /server_info, as far as it is an object."""
    import json

    try:
        told = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(told, dict):
        as_run.from_server_info(told)
