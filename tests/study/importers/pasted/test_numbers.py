"""Numbers and texts of other people: every country's signs, every encoding, or a line that says why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.study.importers import json_fields
from loadgen.study.importers.pasted.numbers import find_decimal_sign, parse_number


@loop_over(
    ("written", "value"),
    [
        ("974.57", 974.57), ("974,57", 974.57), ("1,234.56", 1234.56), ("1.234,56", 1234.56),
        ("1 234,56", 1234.56), ("1\u00a0234,56", 1234.56), ("1\u202f234,56", 1234.56), ("1'234.56", 1234.56),
        ("1\u2019234.56", 1234.56), ("1,234,567.8", 1234567.8), ("1.234.567", 1234567),
        ("1,234,567", 1234567), ("12 345", 12345), ("1 234.567", 1234.567), ("204169", 204169),
        ("0.123", 0.123), ("12345.678", 12345.678), ("1.2345", 1.2345), ("1.5e-3", 0.0015), ("-5.00", -5.0),
    ],
)  # fmt: skip
def test_a_number_is_read_as_its_country_writes_it(written: str, value: float) -> None:
    assert parse_number(written) == value


@pytest.mark.parametrize("written", ["1.234", "1,234", "-12.345"])
def test_a_number_that_is_two_is_refused_by_name(written: str) -> None:
    with pytest.raises(UsageError, match=written):
        parse_number(written)


def test_the_numbers_beside_it_settle_which_of_two_it_is() -> None:
    assert find_decimal_sign(["974.57", "5", "1.234"]) == "."
    assert find_decimal_sign(["974,57", "1.234"]) == ","
    assert find_decimal_sign(["5", "1.234"]) == ""
    assert find_decimal_sign(["974.57", "974,57"]) == ""
    assert parse_number("1.234", ".") == 1.234
    assert parse_number("1.234", ",") == 1234
    assert parse_number("1,234", ".") == 1234


@loop_over("written", ["", "---", "1,23,456", "12.34.56", "1,234.567,8", "ms"])
def test_what_is_no_number_is_none(written: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_number(written)


@loop_over(
    ("raw", "said"),
    [
        ("é ok".encode(), "é ok"),
        ("é ok".encode("utf-8-sig"), "é ok"),
        ("é ok".encode("utf-16"), "é ok"),
        (b"\xfe\xff" + "é ok".encode("utf-16-be"), "é ok"),
        ("é ok".encode("latin-1"), "é ok"),
    ],
)
def test_a_text_is_read_in_the_encoding_that_it_has(raw: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(raw)
    assert json_fields.decode_text(json_fields.read_file(tmp_path / "t"), tmp_path / "t") == said


@loop_over(
    ("raw", "why"),
    [
        (b"", "is empty"), (b" \n", "is empty"), (b"\x1f\x8b\x08\0", r"is compressed \(gzip\): unpack it"),
        (b"PK\x03\x04", r"is compressed \(zip\)"), (b"\x7fELF\0\0", "is a binary file"),
        (b"\xff\xfea", "begins as utf-16-le and is not valid utf-16-le"),
    ],
)  # fmt: skip
def test_what_is_no_text_says_why(raw: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(raw)
    with pytest.raises(UsageError, match=why):
        json_fields.decode_text(json_fields.read_file(tmp_path / "t"), tmp_path / "t")


def test_a_place_that_is_no_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        json_fields.read_file(tmp_path / "none")
    with pytest.raises(UsageError, match="not a regular file"):
        json_fields.read_file(Path("/dev/null"))
