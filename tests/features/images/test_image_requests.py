"""Image requests: which images a plan's bodies have, and what a plan says of them."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PIL import Image

from builders.loops import loop_over
from builders.required import require
from loadgen.base.errors import UsageError
from loadgen.engines.engines import ENGINES
from loadgen.features.apis.messages_api import Messages
from loadgen.features.apis.responses_api import Responses
from loadgen.plan import plan, profile
from loadgen.plan.plan import Plan
from loadgen.plan.request_sources import ModelTarget, Seed, WordCounts
from loadgen.wire.openai import Chat, Dialect

PICTURES = Path(__file__).parents[2] / "data" / "pictures"
SMALL = {
    "image_size": "48x32", "image_format": "png", "input_len": 8, "output_len": 5, "num_prompts": 40,
    "max_concurrency": 2,
}  # fmt: skip


def made(seed: int = 1, **keys: Any) -> Plan:
    target = ModelTarget(ENGINES[0], "m", word_counts=WordCounts())
    return plan.make(profile.build({**SMALL, **keys}), target, Seed(seed, chosen=True))


def parts(of: Plan, i: int) -> list[dict[str, Any]]:
    (message,) = of.payload(i)["messages"]
    found: list[dict[str, Any]] = message["content"]
    return found


def files(of: Plan, i: int) -> list[bytes]:
    urls = [part["image_url"]["url"] for part in parts(of, i) if part["type"] == "image_url"]
    return [base64.b64decode(url.partition(";base64,")[2], validate=True) for url in urls]


def size(content: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(content)) as image:
        image.load()
        return image.size


def test_images_stand_after_the_text_in_the_chat_api() -> None:
    of = made(images="2")
    assert of.path == "/v1/chat/completions"
    text, *images = parts(of, 3)
    assert text == {"type": "text", "text": of.requests.prompt(3)}  # type: ignore[attr-defined]
    assert [image["type"] for image in images] == ["image_url"] * 2
    assert [size(content) for content in files(of, 3)] == [(48, 32)] * 2


DATA = "data:image/png;base64,AAAA"
IN_SOURCE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
AT = "http://127.0.0.1:8/image-0.png"
IN_CHAT = {"type": "image_url", "image_url": {"url": AT}}
IN_ITEMS = {"type": "input_image", "image_url": AT}
IN_BLOCKS = {"type": "image", "source": {"type": "url", "url": AT}}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "sun"}


@loop_over(
    ("dialect", "field", "image", "given", "sent"),
    [
        (Chat(), "messages", AT, {"role": "user", "content": None}, [{"role": "user", "content": [IN_CHAT]}]),
        (Responses(), "input", AT, RESULT, [RESULT, {"role": "user", "content": [IN_ITEMS]}]),
        (Responses(), "input", AT, {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
         [{"role": "user", "content": [{"type": "input_text", "text": "a"}, IN_ITEMS]}]),
        (Messages(), "messages", AT, {"role": "user", "content": "a"},
         [{"role": "user", "content": [{"type": "text", "text": "a"}, IN_BLOCKS]}]),
        (Messages(), "messages", DATA, {"role": "user", "content": []},
         [{"role": "user", "content": [IN_SOURCE]}]),
    ],
)  # fmt: skip
def test_an_image_follows_what_a_last_message_has(
    dialect: Dialect, field: str, image: str, given: Any, sent: Any
) -> None:
    made = msgspec.json.encode(dialect.add_images({field: [given]}, [image.encode()]))
    assert msgspec.json.decode(made) == {field: sent}


def test_no_two_images_are_equal_and_a_seed_makes_them_again() -> None:
    of, again, other = made(num_prompts=200), made(num_prompts=200), made(seed=2, num_prompts=200)
    assert len({files(of, i)[0] for i in range(200)}) == require(of.facts.images).distinct == 200
    assert (of.body(7), of.digest()) == (again.body(7), again.digest())
    assert of.body(7) != other.body(7)
    assert of.digest() != other.digest()


def test_sizes_and_numbers_are_those_that_the_facts_name() -> None:
    of = made(image_size="48x32 75%, 16x8 25%", images="0-2", num_prompts=300)
    facts = require(of.facts.images)
    sent = [[size(content) for content in files(of, i)] if facts.counts[i] else [] for i in range(300)]
    assert tuple(map(len, sent)) == facts.counts
    every = [one for several in sent for one in several]
    assert sorted(facts.sizes) == sorted((*one, every.count(one)) for one in set(every))
    assert abs(every.count((48, 32)) / len(every) - 0.75) < 0.1


def test_a_request_without_images_is_what_it_was() -> None:
    of = made(images="0-1")
    without = next(i for i, count in enumerate(of.facts.images.counts) if not count)  # type: ignore[union-attr]
    assert of.payload(without)["messages"][0]["content"] == of.requests.prompt(without)  # type: ignore[attr-defined]


def test_files_of_a_directory_are_sent_by_turns_as_they_are(tmp_path: Path) -> None:
    noise = (PICTURES / "noise.png").read_bytes()
    (tmp_path / "b.png").write_bytes(noise)
    (tmp_path / "a.png").write_bytes(noise + b"a")
    for name in ("notes.txt", "._a.png"):
        (tmp_path / name).write_text("no image")
    of = made(image_size="", image_dir=str(tmp_path), image_format="jpeg")
    assert [files(of, i)[0] for i in range(3)] == [noise + b"a", noise, noise + b"a"]
    facts = require(of.facts.images)
    assert (facts.format, facts.sizes, facts.distinct) == ("as they are", ((24, 16, 40),), 2)


def test_a_directory_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no PNG, JPEG, WebP or GIF file"):
        made(image_size="", image_dir=str(tmp_path), image_format="jpeg")


@loop_over("name", ["b.png", "b.JPG", "b.webp"])
def test_a_file_that_is_an_image_by_its_name_alone_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes((PICTURES / "noise.png").read_bytes())
    (tmp_path / name).write_text("no image")
    with pytest.raises(UsageError, match=f": {name} is no PNG, JPEG, WebP or GIF by its first bytes: remove"):
        made(image_size="", image_dir=str(tmp_path), image_format="jpeg")


def test_the_warm_up_has_images_too_and_other_ones() -> None:
    target = ModelTarget(ENGINES[0], "m", word_counts=WordCounts())
    measured = made()
    workload = measured.profile.model_copy(update={"num_warmups": 2})
    warmup = plan.make_warmup(workload, target, measured.seed, like=measured)
    assert [size(content) for content in files(warmup, 0)] == [(48, 32)]
    assert files(warmup, 0) != files(measured, 0)


def test_random_mm_is_a_load_of_the_chat_api() -> None:
    of = made(dataset_name="random-mm", image_size="", random_mm_bucket_config="{(8, 16, 1): 1.0}")
    assert (of.path, of.profile.dataset_name, of.profile.image_size) == (
        "/v1/chat/completions", "random", "16x8 100%",
    )  # fmt: skip
    assert [size(content) for content in files(of, 0)] == [(16, 8)]
