"""Request class: a share of the requests with lengths of its own, as a table and as `--class` writes it."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, Field, field_validator

from loadgen.base import parsing
from loadgen.base.parsing import suggest_name
from loadgen.base.text import quote_value

_MOST_CLASSES = 100
_NAME = re.compile(r"[\w.+-]+")


class RequestClass(BaseModel, extra="forbid", frozen=True, defer_build=True):
    """One class of requests: its share of them, and their lengths in tokens."""

    name: Annotated[str, Field(min_length=1, max_length=40)]
    share: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]  # percent of the requests
    input_len: Annotated[int, Field(ge=1, le=parsing.MOST_TOKENS)]
    output_len: Annotated[int, Field(ge=1, le=parsing.MOST_TOKENS)]
    range_ratio: str = "0.0"  # as a profile's

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if _NAME.fullmatch(value) is None:
            raise ValueError("a name is of letters, digits and . _ + -")
        return value

    @field_validator("share", mode="before")
    @classmethod
    def _drop_percent_sign(cls, value: Any) -> Any:
        """Drop the % of a share that is written as `30%`; shares are in percent."""
        return value.strip().removesuffix("%") if isinstance(value, str) else value


def parse_class(text: str) -> dict[str, str]:
    """Parse `--class name=long,share=30%,input_len=8000,output_len=200` to a table of texts.

    Raises ValueError for an unknown key, one given twice, and required ones that are missing.
    """
    known = RequestClass.model_fields
    table: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        key = key.replace("-", "_")
        if not equals or key not in known:
            raise ValueError(
                f"{quote_value(part)}{suggest_name(key, known)}: write KEY=VALUE, of {', '.join(known)}"
            )
        if key in table:
            raise ValueError(f"{quote_value(text)}: {key} is given twice")
        table[key] = value
    if missing := [key for key, field in known.items() if field.is_required() and key not in table]:
        raise ValueError(f"{quote_value(text)}: {' and '.join(missing)} missing")
    return table


def check_classes(classes: tuple[RequestClass, ...]) -> tuple[RequestClass, ...]:
    """Return classes; raises ValueError if over 100, a name repeats or their shares do not sum to 100 %."""
    if not classes:
        return classes
    if len(classes) > _MOST_CLASSES:
        raise ValueError(
            f"Tuple should have at most {_MOST_CLASSES} items after validation, not {len(classes)}"
        )
    names = [each.name for each in classes]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise ValueError(f"class {twice} is given twice: give each a name of its own")
    shares = sum(each.share for each in classes)
    if abs(shares - 100) > 1e-6:
        raise ValueError(f"the shares of the classes sum to {shares:.10g} %: make them 100 %")
    return classes
