"""Files of quality: the text that is scored, a reference's answers, and the quality that a run keeps."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from builders.loops import loop_over
from builders.made_qualities import quality
from loadgen.base.errors import MeasureError, UsageError
from loadgen.facts.run_facts import Cell
from loadgen.study.quality.arm_qualities import find_run_quality
from loadgen.study.quality.quality_record import Quality, SampledAnswer, TextSegment, TokenScores
from loadgen.study.quality.quality_text import QualityPlan, read_text
from loadgen.study.quality.reference_file import (
    AnswerLine,
    ReferenceFile,
    ReferenceHeader,
    ReferenceLine,
    SegmentLine,
    read_reference,
)


def test_another_text_is_read_and_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("ä" * 1000, "utf-8")
    assert read_text(path) == "ä" * 1000
    cases = {
        b"short": "has 5 bytes: give 2,000 to 16,777,216",
        b"\xff" * 3000: "is not UTF-8",
        b" \n" * 2000: "has nothing but",
    }
    for data, message in cases.items():
        path.write_bytes(data)
        with pytest.raises(UsageError, match=message):
            read_text(path)
    with pytest.raises(UsageError, match="No such file"):
        read_text(tmp_path / "none")


@loop_over("text", [read_text(), "".join(map(chr, range(0x4E00, 0x6000)))])
def test_prompts_are_spread_over_the_text_and_differ(text: str) -> None:
    plan = QualityPlan(text)
    prompts = [plan.cut_prompt(number) for number in range(plan.tokens // plan.answer_tokens)]
    begins = [text.index(prompt) / len(text) for prompt in prompts[:300]]
    assert len({*prompts}) == 1250
    assert all(sum(part / 5 <= begin < (part + 1) / 5 for begin in begins) > 40 for part in range(5))
    assert max(map(len, prompts)) <= 240
    assert prompts == [QualityPlan(text).cut_prompt(number) for number in range(len(prompts))]


def test_a_plan_follows_the_settings_of_a_reference_file() -> None:
    plan = QualityPlan("text")
    assert plan.follow_settings(
        QualityPlan("text", answer_tokens=9, chat=True).list_settings()
    ) == QualityPlan("text", answer_tokens=9, chat=True)
    assert plan.follow_settings({"answer_tokens": "many", "chat": 1}) == plan


def stored(directory: Path, name: str, text: str) -> None:
    (directory / "quality").mkdir(exist_ok=True)
    (directory / "quality" / f"{name}-vllm-0.32.json").write_text(text, "utf-8")


def test_a_run_has_the_quality_of_its_arm_or_its_own(tmp_path: Path) -> None:
    arm, own = Quality(reference="a", candidate="b"), Quality(reference="a", candidate="c")
    cell = Cell(campaign="c", checkpoint="fp8", server="vllm 0.32", profile="p", repeat=0, start="r0")
    stored(tmp_path, "fp8", arm.model_dump_json())
    places = [tmp_path / "cells" / "r0-fp8", tmp_path / "cells" / "r0-fp8" / "20260101-000000-p"]
    alone = tmp_path / "alone"
    assert [find_run_quality(place, cell) for place in places] == [arm, arm]
    assert find_run_quality(places[0], None) is None
    assert find_run_quality(alone, cell) is None
    alone.mkdir()
    (alone / "quality.json").write_text(own.model_dump_json(), "utf-8")
    assert find_run_quality(alone, None) == own
    endless = quality(1e-3, 1e-4).model_dump_json().replace('"mean":0.941', '"mean":1e999')
    for damaged in ("{}", "[" * 100_000, endless):
        (alone / "quality.json").write_text(damaged, "utf-8")
        found = find_run_quality(alone, None)
        assert found is not None
        assert (found.kl, found.why["kl"]) == (
            None,
            "quality.json is damaged: measure it again with `loadgen quality --json`",
        )


HEADER = ReferenceHeader(
    model="m", engine="vLLM", settings={"temperature": 1}, text_digest="d", text_ids=((1, 2),)
)
SEGMENT = TextSegment((1, 2), TokenScores((-0.5,), (2,)), 3)
SEGMENT_LINE = SegmentLine(SEGMENT)


def answer(number: int, own: bool = True) -> AnswerLine:
    sampled = SampledAnswer((number, 2), (3, 4), (-0.25, -1.5), ((-0.25, -2.0), (-0.5, -1.5)))
    return AnswerLine(sampled, TokenScores((-0.25, -1.5)) if own else None)


def write(path: Path, *parts: Sequence[ReferenceLine]) -> None:
    file = ReferenceFile(path, HEADER)
    for part in parts:
        file.append(part)
    file.close()


def test_what_is_appended_is_read_back_and_any_gzip_reads_it(tmp_path: Path) -> None:
    one, two = tmp_path / "one.gz", tmp_path / "two.gz"
    write(one, [answer(1), SEGMENT_LINE], [], [answer(2, own=False)])
    write(two, [answer(1), SEGMENT_LINE, answer(2, own=False)])
    contents = read_reference(one)
    assert (contents.header, contents.segments, contents.damage) == (HEADER, [SEGMENT], "")
    assert contents.answers == [answer(1), answer(2, own=False)]
    assert contents.whole_bytes == one.stat().st_size
    assert gzip.decompress(one.read_bytes()) == gzip.decompress(two.read_bytes())
    assert contents.digest == read_reference(two).digest  # of the lines, whatever the members
    write(two, [answer(3)])
    assert contents.digest != read_reference(two).digest


def test_a_file_cut_anywhere_gives_the_whole_appends_before(tmp_path: Path) -> None:
    path = tmp_path / "ref.gz"
    ends = []
    for part in ([], [answer(1)], [answer(2), answer(3)]):
        write(path, part)
        ends.append(path.stat().st_size)
    data = path.read_bytes()
    for size in range(ends[0], len(data) + 1):
        path.write_bytes(data[:size])
        contents = read_reference(path)
        assert len(contents.answers) == (3 if size == ends[2] else 1 if size >= ends[1] else 0)
        assert bool(contents.damage) == (size not in ends)


def test_a_damaged_file_goes_on_after_its_last_whole_append(tmp_path: Path) -> None:
    path = tmp_path / "ref.gz"
    write(path, [answer(1)], [answer(2)])
    data = bytearray(path.read_bytes())
    data[-12] ^= 0xFF
    path.write_bytes(data)
    assert read_reference(path).answers == [answer(1)]
    write(path, [answer(3)])
    assert read_reference(path).answers == [answer(1), answer(3)]
    assert read_reference(path).damage == ""


def pack(*rows: bytes) -> bytes:
    return gzip.compress(b"".join(row + b"\n" for row in rows), mtime=0)


FOREIGN = [b"plain", b"", pack(b"[]"), pack(b'{"version":1}'), gzip.compress(b"\n" * (65 << 20), mtime=0)]


@loop_over("data", FOREIGN)
def test_what_is_no_reference_file_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "ref.gz"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="is not a file that `loadgen quality --save` made"):
        read_reference(path)


def test_a_file_of_another_header_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "ref.gz"
    write(path, [answer(1)])
    for changed, words in (
        ({"engine": "SGLang", "engine_version": "1"}, "engine .vLLM, not SGLang., engine version ., not 1."),
        ({"settings": {"temperature": 1, "chat": True}, "text_digest": "e"}, "chat .None, not True., text"),
        ({"text_ids": ((1, 3),)}, "tokenizer"),
    ):
        with pytest.raises(UsageError, match=f"is of another {words}: name another file"):
            ReferenceFile(path, msgspec.structs.replace(HEADER, **changed))
    assert len(read_reference(path).answers) == 1


def test_a_file_has_one_writer_and_a_place(tmp_path: Path) -> None:
    path = tmp_path / "ref.gz"
    first = ReferenceFile(path, HEADER)
    with pytest.raises(MeasureError, match="another process writes"):
        ReferenceFile(path, HEADER)
    first.append([answer(1)])
    first.close()
    write(path, [answer(2)])
    assert read_reference(path).answers == [answer(1), answer(2)]
    with pytest.raises(UsageError, match="cannot read"):
        read_reference(tmp_path / "none.gz")
    with pytest.raises(MeasureError, match="cannot write"):
        ReferenceFile(tmp_path / "no" / "ref.gz", HEADER)
