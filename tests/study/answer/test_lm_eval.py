"""Scores of lm-evaluation-harness: which are read of a file, and what is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over
from builders.made_answers import answered, keep_campaign, speeds
from loadgen.base.errors import UsageError
from loadgen.study.answer import answer_report
from loadgen.study.answer.answer_settings import read_scores

# As lm-evaluation-harness 0.4 writes it, most keys left out.
RESULTS: dict[str, Any] = {
    "results": {
        "mmlu": {"acc,none": 0.5, "acc_stderr,none": 0.01, "alias": "mmlu"},
        "mmlu_law": {"acc,none": 0.4, "acc_stderr,none": 0.02, "alias": " - law"},
        "gsm8k": {
            "alias": "gsm8k",
            "exact_match,strict-match": 0.75,
            "exact_match_stderr,strict-match": 0.02,
            "exact_match,flexible-extract": 0.8,
            "exact_match_stderr,flexible-extract": 0.02,
        },
        "wikitext": {"alias": "wikitext", "word_perplexity,none": 9.5, "word_perplexity_stderr,none": "N/A"},
        "group": {"alias": "group"},
        "member": {"alias": " - member", "f1": 0.25, "f1_stderr": 0.0},
    },
    "group_subtasks": {"mmlu": ["mmlu_law"], "gsm8k": [], "group": ["member"]},
    "lm_eval_version": "0.4.9",
}


def test_the_first_metric_of_each_task_is_read(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for stamp, contents in (("2026-01-01", {"results": {}}), ("2026-01-02", RESULTS)):
        (tmp_path / "model" / f"results_{stamp}T00-00-00.json").write_text(json.dumps(contents), "utf-8")
    scores = read_scores(str(tmp_path))
    assert list(scores) == ["mmlu acc", "gsm8k exact_match", "wikitext word_perplexity", "member f1"]
    assert scores["gsm8k exact_match"].mean == 0.75
    assert scores["gsm8k exact_match"].half == pytest.approx(1.96 * 0.02, rel=1e-4)
    assert scores["wikitext word_perplexity"].half != scores["wikitext word_perplexity"].half


@loop_over(
    ("text", "said"),
    [
        ("{", "is not a results_*.json of lm-evaluation-harness"),
        ("[]", "is not a results_*.json of lm-evaluation-harness"),
        ('{"results": {"a": {"alias": "a"}, "b": 5}}', "no task has a score"),
    ],
)
def test_what_has_no_scores_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "results_1.json").write_text(text, "utf-8")
    with pytest.raises(UsageError, match="lm-evaluation-harness") as caught:
        read_scores(str(tmp_path / "results_1.json"))
    assert said in str(caught.value)


def test_scores_are_columns_of_the_answer(tmp_path: Path) -> None:
    keep_campaign(tmp_path, {}, answer={"lm_eval": {"bf16": str(tmp_path / "gone.json")}})
    file = tmp_path / "results_1.json"
    file.write_text(json.dumps({"results": {"gsm8k": RESULTS["results"]["gsm8k"]}}), "utf-8")
    found = answered(tmp_path, speeds(bf16=100, fp8=150), lm_eval={"fp8": str(file)})
    assert [row[-1] for row in answer_report.make_answer_table(found).body] == ["–", "0.750 ±0.039"]
    unscored = answered(tmp_path, speeds(bf16=100, fp8=150))
    assert unscored.columns[-1].key == "speed_1"
    assert list(answer_report.list_notes(unscored))[-1].startswith(f"no scores of bf16: {tmp_path}/gone.json")
    with pytest.raises(UsageError, match="--lm-eval fp9: no such checkpoint; there are bf16, fp8"):
        answered(tmp_path, speeds(bf16=100, fp8=150), lm_eval={"fp9": str(file)})
    with pytest.raises(UsageError, match="gone"):
        answered(tmp_path, speeds(bf16=100, fp8=150), lm_eval={"fp8": str(tmp_path / "gone2.json")})
