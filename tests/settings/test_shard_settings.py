"""Ranks: a shard as it is written, and as launchers number their processes."""

from __future__ import annotations

import pytest

from builders.loops import loop_over, loop_over_named, read_tables
from loadgen.settings import shard_settings
from loadgen.settings.shard_settings import Share

TABLES = read_tables("shard_settings")


@loop_over_named(("text", "environ", "share"), TABLES["shards"])
def test_a_shard_is_read(text: str, environ: dict[str, str], share: list[int]) -> None:
    assert shard_settings.read_share(text, environ) == Share(*share)


@loop_over(("text", "environ", "message"), TABLES["no shards"])
def test_what_is_no_shard_is_refused(text: str, environ: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=r"shard|give") as refused:
        shard_settings.read_share(text, environ)
    assert message in str(refused.value)
