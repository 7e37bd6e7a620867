"""Fingerprint: what is broken about answers is told from what is only different."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


def with_ids(*ids: Sequence[int], cut: str = "") -> Fingerprint:
    answers = (
        GreedyAnswer(prompt=f"p{at}", text="t", token_ids=tuple(found), cut=cut)
        for at, found in enumerate(ids)
    )
    return Fingerprint(version=1, answers=tuple(answers))


FLAWS: list[tuple[dict[str, Any], Flaw | None]] = [
    *(({"text": text}, None) for text in HEALTHY),
    ({"text": BANGS}, Flaw.NOISE),  # NaN logits make id 0, which is ! in many
    ({"text": "", "token_ids": [0] * 48}, Flaw.NOISE),  # id 0 that is no text
    ({"text": "ab" * 24, "token_ids": [17] * 48}, Flaw.NOISE),
    ({"text": "\ufffd" * 20 + "ab"}, Flaw.NOISE),
    ({"text": "中国\ufffd是一个国家"}, None),  # one character cut in two
    ({"text": "!!!"}, None),
    ({"text": "", "token_ids": [2]}, Flaw.EMPTY),  # an end of sequence alone
    ({"text": "\n \n\t\n\n  \n \n"}, Flaw.EMPTY),
    ({"text": LOOP}, Flaw.LOOP),
    ({"text": SENTENCES}, Flaw.LOOP),
    ({"text": "我爱你" * 12}, Flaw.LOOP),
    ({"text": "x", "token_ids": [9, 8, 7, 6] + [1, 2, 3] * 10}, Flaw.LOOP),
    ({"text": "x", "token_ids": list(range(24)) + [5, 6] * 5}, None),  # two at the very end
    ({"text": SALAD}, None),  # it does not show by itself
    ({"text": BANGS, "failure": "timeout: x"}, None),
    ({"text": "", "cut": "no time"}, None),  # before its first token
    ({"text": LOOP, "cut": "no time"}, Flaw.LOOP),
]


@loop_over(("answer", "found"), FLAWS)
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


BROKEN: list[tuple[Fingerprint, Fingerprint | None, list[str]]] = [
    (of(), None, []),
    (of(), of(), []),
    (of(BANGS), None, []),  # one by accident
    (of(*[BANGS] * 12), None, [NOISY]),
    (of(*[BANGS] * 12), of(), [NOISY_BESIDE]),
    (of(*[BANGS] * 12), of(*[BANGS] * 12), [NOISY_AS_WELL]),
    (of(*[LOOP] * 5), None, []),  # small greedy models loop now and then
    (of(*[LOOP] * 6), None, [LOOPS]),
    (of(*[LOOP] * 6), of(*[LOOP] * 5), []),
    (of(*[LOOP] * 6), make_empty_fingerprint("why not"), [LOOPS]),
    (of(*[SENTENCES] * 4), of(LOOP),
     [f"4 of 12 {LOOPING} (of the baseline's: 1): 'It is big. It is big. It'…"]),
    (of("", "", ""), None, []),  # an instruct model may have nothing to add
    (of("", "", "", " \n"), None, ["4 of 12 answers are empty"]),
    (of("", "", "", ""), of("", "", ""), []),
    (of("", "", ""), of(), ["3 of 12 answers are empty (of the baseline's: 0)"]),
    (of(*[SALAD] * 12), None, []),
    (of(*[SALAD] * 12), of(*[SALAD] * 12), []),
    (of(*[SALAD] * 5), of(), []),  # half of the questions are enough
    (of(*[SALAD] * 9), of(form=CHAT), []),  # a baseline that was asked otherwise
    (of(*[SALAD] * 9), of(), ["2 right of 11 plain questions that the baseline answers: "
     "'The capital of France is' → 'placeAction V tuplemptyu'…"]),
    (make_empty_fingerprint("why not"), of(), []),
    (replace(of(), answers=CUT), of(), []),  # before its answer
    # Without what a terminal would obey.
    (replace(of(), answers=TWO_FAILED + of().answers[2:]), None,
     ["2 of 12 prompts failed, the first with http-status: 500:  [31mno"]),
]  # fmt: skip


@loop_over(("own", "baseline", "said"), BROKEN)
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
        # A cut answer is compared as far as it goes.
        (with_ids([1, 2], [1, 9], cut="late"), with_ids([1, 2, 3, 4], [1, 2, 3, 4]),
         "first differs from BF16 after 1 of 2 tokens (median of 1 prompt; 1 the same to the end)"),
        (of(form=CHAT), of(), f"{DIFFERENT}asked as chat here, as completion there"),
        (of(), OTHER_SET, f"{DIFFERENT}other prompts (set 1 here, 2 there)"),
        (of(), make_empty_fingerprint("no tokenizer"), f"{DIFFERENT}no tokenizer"),
        (of(), FAILED, f"{DIFFERENT}no prompt was answered by both"),
    ],
)  # fmt: skip
def test_how_far_two_answers_go_together(own: Fingerprint, other: Fingerprint, line: str) -> None:
    assert describe_difference(own, other, "BF16") == line


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
