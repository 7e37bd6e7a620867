"""Trial bodies: small requests that ask a server for what a plan's do, with none of the plan's own text.

A row of a file is never sent before the run: the server's prefix cache would hold it.
"""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import msgspec
import numpy as np

from loadgen.base.arrays import Int64
from loadgen.plan.plan import Plan
from loadgen.plan.planned_requests import PromptRequests
from loadgen.wire.openai import Dialect

TEXT = "hello"
_TOKENS = 4  # of a prompt in ids
_SIDE = 64  # pixels: models of vision refuse images that are smaller than a patch
_OWN = ("messages", "prompt", "stop", "seed", "min_tokens", "max_tokens", "max_completion_tokens")
_IMAGE = b'"image_url"'


class TrialBodies:
    """Small requests, one for each set of features that a plan's bodies use, at least one.

    `names` has the features of the plan, by the request that asks for them first.
    """

    format = "trial"

    def __init__(self, made: Plan) -> None:
        self._made = made
        self.names: dict[str, int] = getattr(made.requests, "features", {})
        self._places = sorted(set(self.names.values())) or [0]
        self.input_lens: Int64 = np.full(len(self._places), _TOKENS, np.int64)
        self.output_lens = np.full(len(self._places), max(1, made.profile.min_tokens or 0), np.int64)

    def request(self, i: int, dialect: Dialect, model: str) -> dict[str, Any]:
        """Make a body with the features of one of the plan's, and a short text instead of its own."""
        place, length = self._places[i], int(self.output_lens[i])
        if isinstance(self._made.requests, PromptRequests):
            prompt = self._made.requests.prompt(place)
            short = TEXT if isinstance(prompt, str) else prompt[-1:] * _TOKENS
            return dialect.make_request(model, short, length)
        raw = msgspec.json.encode(self._made.requests.request(place, dialect, model))
        row: dict[str, Any] = msgspec.json.decode(raw)
        kept = {name: value for name, value in row.items() if name not in _OWN}
        if "messages" not in row:
            return {**dialect.make_request(model, _prompt(row), length), **kept}
        small = dialect.make_request(model, TEXT, length)
        if row["messages"][0].get("role") == "system":
            small["messages"] = [{"role": "system", "content": TEXT}, *small["messages"]]
        if _IMAGE in raw:
            small["messages"] = [{"role": "user", "content": _with_image()}]
        return {**small, **kept}

    def name_row(self, i: int) -> str:
        """Name the file's row whose features the body has, as `data.jsonl row 17`; "" without a file."""
        where = getattr(self._made.requests, "name_row", None)
        return "" if where is None else str(where(self._places[i]))

    def digest(self) -> str:
        """Return "": a trial's requests are not compared with anything."""
        return ""


def _prompt(row: dict[str, Any]) -> list[int] | str:
    """Return a short prompt of the same kind: ids if the body has ids."""
    prompt = row.get("prompt")
    return prompt[-1:] * _TOKENS if isinstance(prompt, list) else TEXT


def _with_image() -> list[dict[str, Any]]:
    url = f"data:image/png;base64,{base64.b64encode(make_png(_SIDE)).decode()}"
    return [{"type": "text", "text": TEXT}, {"type": "image_url", "image_url": {"url": url}}]


def make_png(side: int) -> bytes:
    """Make a grey PNG image, `side` pixels wide and high (ISO/IEC 15948)."""
    rows = (b"\0" + b"\x80" * side) * side
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0),
        b"IDAT": zlib.compress(rows),
        b"IEND": b"",
    }
    parts = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks.items()
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
