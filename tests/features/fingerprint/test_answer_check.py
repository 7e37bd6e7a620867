"""Fingerprint: what is broken about answers is told from what is only different."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from builders.loops import loop_over
from loadgen.base.structs import replace
from loadgen.facts.run_facts import Fingerprint, GreedyAnswer
from loadgen.features.fingerprint import answer_check
from loadgen.features.fingerprint.answer_check import (
    CHAT,
    PROMPTS,
    Flaw,
    describe_difference,
    find_flaw,
    judge_answers,
    make_empty_fingerprint,
)

# As small instruct models go on, greedily.
HEALTHY = (
    " Paris. It is located in the north of the country on the river Seine.",
    " Au, from the Latin word aurum. It has the atomic number 79.",
    " question: Whether 'tis nobler in the mind to suffer the slings and arrows",
    " 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20",
    " Thursday, Friday, Saturday, Sunday. There are seven days in a week.",
    " 6\n2 + 7 = 9\n8 + 1 = 9\n4 + 4 = 8",
    " a + b\n\ndef subtract(a, b):\n    return a - b\n\nprint(add(1, 2))",
    ' i++) {\n        sum += array[i];\n    }\n    printf("%d", sum);',
    ' "New York", "hobbies": ["reading", "hiking"], "married": false}',
    "北京，位于华北平原的北部，是中国的政治和文化中心。",  # noqa: RUF001
    " Berlin. Die Stadt hat etwa 3,7 Millionen Einwohner und liegt an der Spree.",
    " girl named Lily. She lived in a small house near the edge of a big forest.",
)
LOOP = " the the the the the the the the the the the the the the the the"
SENTENCES = " It is big. It is big. It is big. It is big. It is big. It is big. It is big."
BANGS = "!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!"
SALAD = " placeAction V tuplemptyunction_sig oncetk item remaining.test instru"


def of(*texts: str, **more: Any) -> Fingerprint:
    """A fingerprint of these answers, the healthy ones after them."""
    said = [*texts, *HEALTHY[len(texts) :]]
    answers = [
        GreedyAnswer(prompt=prompt.text, text=text) for prompt, text in zip(PROMPTS, said, strict=True)
    ]
    return Fingerprint(version=1, answers=tuple(answers), **more)


def with_ids(*ids: Sequence[int], **more: Any) -> Fingerprint:
    answers = tuple(
        GreedyAnswer(prompt=f"p{i}", text="t", token_ids=tuple(found)) for i, found in enumerate(ids)
    )
    return Fingerprint(version=1, answers=answers, **more)


@loop_over(
    ("answer", "found"),
    [
        *(pytest.param({"text": text}, None, id=f"healthy {i}") for i, text in enumerate(HEALTHY)),
        pytest.param({"text": BANGS}, Flaw.NOISE, id="NaN logits make id 0, which is ! in many"),
        pytest.param({"text": "", "token_ids": [0] * 48}, Flaw.NOISE, id="id 0 that is no text"),
        pytest.param({"text": "ab" * 24, "token_ids": [17] * 48}, Flaw.NOISE, id="one token of two letters"),
        pytest.param({"text": "\ufffd" * 20 + "ab"}, Flaw.NOISE, id="hardly any character"),
        pytest.param({"text": "\ufffd"}, Flaw.NOISE, id="no character"),
        pytest.param({"text": "中国\ufffd是一个国家"}, None, id="one character cut in two"),
        pytest.param({"text": "!!!"}, None, id="short and loud"),
        pytest.param({"text": "nan nan nan nan nan nan nan nan nan nan"}, Flaw.LOOP, id="nan"),
        pytest.param({"text": ""}, Flaw.EMPTY, id="nothing"),
        pytest.param({"text": "", "token_ids": [2]}, Flaw.EMPTY, id="an end of sequence alone"),
        pytest.param({"text": "\n \n\t\n\n  \n \n"}, Flaw.EMPTY, id="whitespace"),
        pytest.param({"text": LOOP}, Flaw.LOOP, id="a word"),
        pytest.param({"text": SENTENCES}, Flaw.LOOP, id="a sentence"),
        pytest.param({"text": "我爱你" * 12}, Flaw.LOOP, id="in Chinese"),
        pytest.param({"text": "x", "token_ids": [9, 8, 7, 6] + [1, 2, 3] * 10}, Flaw.LOOP, id="three tokens"),
        pytest.param(
            {"text": "x", "token_ids": list(range(24)) + [5, 6] * 5}, None, id="two at the very end"
        ),
        pytest.param({"text": "x", "token_ids": list(range(48))}, None, id="all different"),
        pytest.param({"text": '{"a": 1, "b": [1, 2, 3], "c": {"d": null, "e": true}}'}, None, id="JSON"),
        pytest.param({"text": SALAD}, None, id="word salad does not show by itself"),
        pytest.param({"text": BANGS, "failure": "timeout: x"}, None, id="failed"),
        pytest.param({"text": "", "cut": "no time"}, None, id="cut before its first token"),
        pytest.param({"text": LOOP, "cut": "no time"}, Flaw.LOOP, id="cut in its loop"),
    ],
)
def test_an_answer_is_one_or_it_is_known_what_it_is_instead(
    answer: dict[str, Any], found: Flaw | None
) -> None:
    assert find_flaw(GreedyAnswer(prompt="p", **answer)) is found


LOOPING = "answers are a few tokens repeated to the end"
NOISY = f"12 of 12 answers are one token throughout, or no text, which NaN logits make: '{BANGS[:24]}'…"
NOISY_BESIDE, NOISY_AS_WELL = (NOISY.replace(": '", f" (of the baseline's: {count}): '") for count in (0, 12))
LOOPS = f"6 of 12 {LOOPING}: 'the the the the the the '…"
CUT = tuple(replace(answer, text=" I", cut="late") for answer in of().answers)
TWO_FAILED = tuple(replace(answer, failure="http-status: 500: \x1b[31mno") for answer in of().answers[:2])
DIFFERENT = "answers not compared with BF16: "


@loop_over(
    ("own", "baseline", "said"),
    [
        pytest.param(of(), None, [], id="healthy"),
        pytest.param(of(), of(), [], id="as healthy as the baseline"),
        pytest.param(of(*[BANGS] * 12), None, [NOISY], id="NaN"),
        pytest.param(of(BANGS), None, [], id="one by accident"),
        pytest.param(of(*[LOOP] * 5), None, [], id="small greedy models loop now and then"),
        pytest.param(of(*[LOOP] * 6), None, [LOOPS], id="half of them loop"),
        pytest.param(of(*[LOOP] * 6), of(*[LOOP] * 5), [], id="so does the baseline"),
        pytest.param(of(*[SENTENCES] * 4), of(LOOP),
            [f"4 of 12 {LOOPING} (of the baseline's: 1): 'It is big. It is big. It'…"],
            id="the baseline does less"),
        pytest.param(of("", "", ""), None, [], id="an instruct model may have nothing to add"),
        pytest.param(of("", "", "", " \n"), None, ["4 of 12 answers are empty"], id="empty"),
        pytest.param(of("", "", "", ""), of("", "", ""), [], id="as empty as the baseline"),
        pytest.param(of("", "", ""), of(), ["3 of 12 answers are empty (of the baseline's: 0)"],
         id="emptier"),
        pytest.param(of(*[SALAD] * 12), None, [], id="salad without a baseline"),
        pytest.param(
            of(*[SALAD] * 9),
            of(),
            [
                "2 right of 11 plain questions that the baseline answers: "
                "'The capital of France is' → 'placeAction V tuplemptyu'…"
            ],
            id="salad",
        ),
        pytest.param(of(*[BANGS] * 12), of(), [NOISY_BESIDE], id="noise is named once"),
        pytest.param(of(*[BANGS] * 12), of(*[BANGS] * 12), [NOISY_AS_WELL], id="the baseline is noise, too"),
        pytest.param(of(*[SALAD] * 5), of(), [], id="half of the questions are enough"),
        pytest.param(of(*[SALAD] * 12), of(*[SALAD] * 12), [], id="the baseline knows nothing either"),
        pytest.param(of(*[SALAD] * 9), of(form=CHAT), [], id="a baseline that was asked otherwise"),
        pytest.param(make_empty_fingerprint("why not"), of(), [], id="nothing was asked"),
        pytest.param(of(*[LOOP] * 6), make_empty_fingerprint("why not"), [LOOPS], id="no baseline's answers"),
        pytest.param(replace(of(), answers=CUT), of(), [], id="cut before its answer"),
        pytest.param(replace(of(), answers=TWO_FAILED + of().answers[2:]), None,
         ["2 of 12 prompts failed, the first with http-status: 500:  [31mno"],
         id="failures, without what a terminal would obey"),
    ],
)  # fmt: skip
def test_what_is_broken_is_named_over_the_set_and_against_the_baseline(
    own: Fingerprint, baseline: Fingerprint | None, said: list[str]
) -> None:
    assert judge_answers(own, baseline) == said


@loop_over("index", range(len(PROMPTS)))
def test_each_prompt_expects_what_a_healthy_model_says_and_no_salad(index: int) -> None:
    prompt = PROMPTS[index]
    right = Fingerprint(version=1, answers=(GreedyAnswer(prompt=prompt.text, text=HEALTHY[index]),))
    wrong = Fingerprint(version=1, answers=(GreedyAnswer(prompt=prompt.text, text=SALAD),))
    of = 1 if prompt.expects else 0
    assert answer_check.count_right(right) == (of, of)
    assert answer_check.count_right(wrong) == (0, of)


def test_the_prompts_are_one_version_and_shorter_than_a_block() -> None:
    """Whoever changes a prompt counts the version up, here too."""
    assert (answer_check.VERSION, answer_check.ANSWER_TOKENS, len(PROMPTS)) == (1, 48, 12)
    assert max(len(prompt.text.encode()) for prompt in PROMPTS) < 40
    assert len({prompt.text for prompt in PROMPTS}) == 12


OTHER_SET = replace(of(), version=2)
FAILED = Fingerprint(
    version=1, answers=tuple(GreedyAnswer(prompt=prompt.text, failure="x") for prompt in PROMPTS)
)


@loop_over(
    ("own", "other", "line"),
    [
        (of(), of(), "the same answers as BF16 to all 12 prompts"),
        (of(" Paris, of course"), of(" Paris. It is located"),
         "first differs from BF16 after 6 of 21 characters (median of 1 prompt; 11 the same to the end)"),
        (with_ids([1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]),
         with_ids([1, 9, 3, 4], [1, 2, 9, 4], [1, 2, 3, 9]),
         "first differs from BF16 after 2 of 4 tokens (median of 3 prompts)"),
        (with_ids([1, 2]), with_ids([1, 2, 3]),
         "first differs from BF16 after 2 of 3 tokens (median of 1 prompt)"),
        (with_ids([1], [2]), with_ids([3], []), "the same answers as BF16 to all 2 prompts"),  # texts
        (of(form=CHAT), of(), f"{DIFFERENT}asked as chat here, as completion there"),
        (of(), OTHER_SET, f"{DIFFERENT}other prompts (set 1 here, 2 there)"),
        (of(), make_empty_fingerprint("no tokenizer"), f"{DIFFERENT}no tokenizer"),
        (of(), FAILED, f"{DIFFERENT}no prompt was answered by both"),
    ],
)  # fmt: skip
def test_how_far_two_answers_go_together(own: Fingerprint, other: Fingerprint, line: str) -> None:
    assert describe_difference(own, other, "BF16") == line


def test_a_cut_answer_is_compared_as_far_as_it_goes() -> None:
    whole = with_ids([1, 2, 3, 4], [1, 2, 3, 4])
    cut = tuple(
        replace(answer, token_ids=ids, cut="late")
        for answer, ids in zip(whole.answers, [(1, 2), (1, 9)], strict=True)
    )
    assert describe_difference(replace(whole, answers=cut), whole, "it") == (
        "first differs from it after 1 of 2 tokens (median of 1 prompt; 1 the same to the end)"
    )


def test_the_report_says_what_was_answered_cut_and_broken() -> None:
    cut = replace(of(*[BANGS] * 12).answers[0], cut="no more than 5 s were left for it")
    broken = of(*[BANGS] * 12)
    broken = replace(broken, answers=(cut, *broken.answers[1:]))
    assert answer_check.render_lines(of()) == [
        "fingerprint: 12 of 12 greedy prompts answered, 11 of 11 plain questions as expected"
    ]
    assert answer_check.render_lines(broken) == [
        "fingerprint: 12 of 12 greedy prompts answered, 0 of 11 plain questions as expected; "
        "1 cut: no more than 5 s were left for it",
        f"fingerprint: broken? {NOISY}",
    ]
    assert answer_check.render_lines(make_empty_fingerprint("why not")) == ["fingerprint: none: why not"]
