"""Request ids: the x-request-id that each request carried, also where the shards of a plan had their own."""

from __future__ import annotations

from loadgen.base.arrays import Int64
from loadgen.verdict.run_facts import Facts


def request_ids(facts: Facts, indices: Int64) -> list[str | None]:
    """Of the requests of these plan indices; None where it was not stored."""
    shards = {row.number: row.request_id_prefix for row in facts.shards}
    common, of = facts.request_id_prefix, max(len(shards), 1)
    prefixes = [common if common is not None else shards.get(number) for number in range(of)]
    return [_id(prefixes[index % of], index) for index in indices.tolist()]


def _id(prefix: str | None, index: int) -> str | None:
    return None if prefix is None else f"{prefix}{index}"
