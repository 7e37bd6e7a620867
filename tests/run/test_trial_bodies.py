"""Trial bodies: they ask a server for what a plan's do, and hold none of the plan's own text."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.engines.engines import UNKNOWN
from loadgen.plan import plan, profile
from loadgen.plan.plan import Plan
from loadgen.plan.request_sources import ModelTarget, Seed
from loadgen.run.acceptance import TEXT, TrialBodies
from loadgen.wire.openai import Chat, Dialect

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
URL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,SECRET"}}
ROWS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "SECRET"}], "max_tokens": 900, "tools": TOOLS, "stop": "x"},
    {"messages": [{"role": "user", "content": [URL]}], "model": "own", "min_tokens": 80},
]


class Bodies:
    """Whole bodies, as of a file."""

    format = "chat bodies"

    def __init__(self, features: dict[str, int]) -> None:
        self.features = features
        self.input_lens = self.output_lens = np.array([-1, -1])

    def request(self, i: int, dialect: Dialect, model: str) -> dict[str, Any]:
        raw = msgspec.json.decode(msgspec.json.encode(ROWS[i]), type=dict[str, msgspec.Raw])
        return {"model": model, **raw}

    def digest(self) -> str:
        return ""


def made(requests: Bodies | None = None, **keys: Any) -> Plan:
    built = plan.make(profile.build({"num_prompts": 2, **keys}), ModelTarget(UNKNOWN, "m"), Seed(1))
    return built if requests is None else replace(built, requests=requests, count=2)


def bodies(of: Plan) -> list[dict[str, Any]]:
    trials = TrialBodies(of)
    sent = [trials.request(i, of.dialect, "m") for i in range(len(trials.input_lens))]
    return [json.loads(msgspec.json.encode(body)) for body in sent]


def chat(features: dict[str, int], **keys: Any) -> list[dict[str, Any]]:
    return bodies(replace(made(Bodies(features), **keys), dialect=Chat()))


def test_each_set_of_features_is_asked_for_once_without_the_rows_text() -> None:
    tools, image = chat({"tools": 0, "images": 1, "both": 1})
    messages = [{"role": "user", "content": TEXT}]
    assert tools == {"model": "m", "messages": messages, "max_completion_tokens": 1, "tools": TOOLS}
    text, picture = image.pop("messages")[0]["content"]
    assert text == {"type": "text", "text": TEXT}
    assert picture["image_url"]["url"].startswith("data:image/png;base64,")
    assert image == {"model": "own", "max_completion_tokens": 1}
    assert "SECRET" not in json.dumps([tools, image, picture])


def test_without_features_the_first_request_is_the_pattern() -> None:
    assert [body["tools"] for body in chat({})] == [TOOLS]
    (body,) = bodies(made())
    assert len(body["prompt"]) == 4
    assert len(set(body["prompt"])) == 1


def test_an_answer_may_be_as_short_as_the_least() -> None:
    assert [body["max_completion_tokens"] for body in chat({}, min_tokens=7)] == [7]
