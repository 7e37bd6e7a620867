"""Export: the rows that --export-requests writes make the same requests when they are read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from loadgen import cli
from loadgen.engines.engines import UNKNOWN
from loadgen.features.data import export_plan
from loadgen.plan import plan, profile
from loadgen.plan.plan import Plan
from loadgen.plan.request_sources import ModelTarget, Seed

pytestmark = pytest.mark.usefixtures("elsewhere")
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
TOKENIZER = str(ROOT / "tests" / "data" / "tokenizer")
OUT = "out.jsonl"
CHAT = {"backend": "openai-chat"}
SMALL = {"num_prompts": 5, "input_len": 20, "output_len": 4}
RANDOM = {"range_ratio": "0.5", **SMALL}


def made(tokenizer: str | None = None, **keys: Any) -> Plan:
    return plan.make(
        profile.build(keys), ModelTarget(UNKNOWN, "m", tokenizer=tokenizer), Seed(3, chosen=True)
    )


def bodies(of: Plan) -> list[Any]:
    return [json.loads(of.body(i)) for i in range(len(of))]


@pytest.mark.parametrize(("keys", "read_with"), [
    (RANDOM, {"ignore_eos": True}),
    ({"dataset_path": str(EXAMPLES / "prompts.jsonl")}, {}),
    ({"dataset_path": str(EXAMPLES / "bodies_with_tools.jsonl"), **CHAT}, CHAT),
    ({"dataset_path": str(EXAMPLES / "images.jsonl"), **CHAT}, CHAT),
    ({"dataset_path": str(EXAMPLES / "conversations_with_tools.jsonl"), **CHAT}, CHAT),
    ({"trace": str(EXAMPLES / "weka.jsonl")}, {"ignore_eos": True}),
], ids=["ids", "prompts", "bodies", "images", "conversations", "a trace"])  # fmt: skip
def test_what_is_written_is_read_as_the_same_requests(
    keys: dict[str, Any], read_with: dict[str, Any]
) -> None:
    before = made(**keys)
    export_plan.export_requests(before, OUT, None)
    after = made(dataset_path=OUT, **read_with)
    assert bodies(after) == bodies(before)
    assert after.requests.output_lens.tolist() == before.requests.output_lens[: len(before)].tolist()


@pytest.mark.parametrize(
    "keys", [{"prompt_format": "text-vllm"}, {"prompt_format": "corpus", **CHAT}], ids=["vLLM's", "corpus"]
)
def test_texts_are_read_by_vllms_rules_too(keys: dict[str, Any]) -> None:
    pytest.importorskip("transformers")
    before = made(TOKENIZER, **RANDOM, **keys)
    export_plan.export_requests(before, OUT, TOKENIZER)
    flags: dict[str, Any] = {
        "custom_output_len": -1, "disable_shuffle": True, "skip_chat_template": True, "num_prompts": 5,
    }  # fmt: skip
    read: dict[str, Any] = {"dataset_path": OUT, "ignore_eos": True, "backend": before.profile.backend}
    for after in (made(TOKENIZER, dataset_name="custom", **flags, **read), made(**read)):
        assert bodies(after) == bodies(before)


def test_ids_become_text_where_there_is_a_tokenizer() -> None:
    pytest.importorskip("transformers")
    lines = export_plan.export_requests(made(TOKENIZER, **RANDOM), OUT, TOKENIZER)
    rows = [json.loads(line) for line in Path(OUT).read_text("utf-8").splitlines()]
    assert {type(row["prompt"]) for row in rows} == {str}
    assert "5 rows of texts; plan " in lines[0]
    assert lines[2].startswith("or by: vllm bench serve --dataset-name custom --dataset-path out.jsonl")


def test_a_file_and_its_export_have_one_digest_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(EXAMPLES / "prompts.jsonl", "p.jsonl")
    for _ in range(2):
        assert cli.main(["data", "p.jsonl", "--export-requests", OUT]) == 0
    shown = capsys.readouterr().out
    digests = {line.split()[1].strip(",") for line in shown.splitlines() if line.startswith("plan ")}
    (digest,) = digests
    assert shown.count(f"requests: {OUT}, 6 rows of texts; plan {digest}") == 2


@pytest.mark.parametrize(("prompt_format", "changed"), [("ids", True), ("corpus", False)])
def test_texts_that_became_other_tokens_are_counted(prompt_format: str, changed: bool) -> None:
    pytest.importorskip("transformers")
    lines = export_plan.export_requests(
        made(TOKENIZER, prompt_format=prompt_format, **RANDOM), OUT, TOKENIZER
    )
    counted = [
        line for line in lines if "of the first 5 texts have more or fewer tokens than the ids" in line
    ]
    assert bool(counted) == changed
