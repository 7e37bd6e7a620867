"""Validation: the values of keys checked by pydantic, and its errors in our words."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from loadgen.base.errors import UsageError
from loadgen.base.parsing import suggest_name
from loadgen.base.text import clean_line, quote_value
from loadgen.settings.server_settings import ServerKeys
from loadgen.settings.setting import list_rows
from loadgen.settings.table import PROFILE_KEYS

Table = TypeVar("Table", bound=BaseModel)


FLAGS = "the flags"  # as the origin of a table: the command line
_FLAGS = {row.name: row.option for row in list_rows(*PROFILE_KEYS, ServerKeys)}
# Flags that were read into tables, which are not as they were typed.
_TABLES = {row.name for row in list_rows(*PROFILE_KEYS) if row.action == "append"}
_OWN = "Value error, "
_KEY = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")


class ServerSettings(
    ServerKeys, extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=False
):
    """The `[server]` table of a profile, or the flags of the same names; None leaves it to the engine."""

    def merge_given(self, other: ServerSettings) -> ServerSettings:
        """Return these settings with those of `other` over them; environment variables merge one by one."""
        given = other.model_dump(exclude_none=True)
        if self.environment and other.environment:
            given["environment"] = {**self.environment, **other.environment}
        return self.model_copy(update=given)


def validate_table(
    kind: type[Table], table: Mapping[str, Any], origin: str, typed: Collection[str] = ()
) -> Table:
    """Return a table as a pydantic model of `kind`; raises UsageError that names `origin` and each wrong key.

    For an unknown key it suggests the nearest known one. The `typed` keys were given as flags and are named
    so; all are where the origin is FLAGS.
    """
    try:
        return kind.model_validate(dict(table))
    except ValidationError as error:
        raise explain_errors(error, origin, kind.model_fields, table if origin == FLAGS else typed) from None


def find_flag(key: str) -> str:
    """Return the flag of a profile's or server setting's key; of any other key, its name with dashes."""
    return _FLAGS.get(key, f"--{key.replace('_', '-')}")


def explain_errors(
    error: ValidationError, origin: str, keys: Collection[str], typed: Collection[str] = ()
) -> UsageError:
    """Return a UsageError that explains each error of a ValidationError; `keys` are those that are known."""
    return UsageError("; ".join(_explain(item, origin, keys, typed) for item in error.errors()))


def explain_unknown(error: ValidationError) -> str:
    """Explain that another version wrote what was read; "" if anything but its keys is wrong."""
    errors = error.errors()
    if any(item["type"] != "extra_forbidden" for item in errors):
        return ""
    keys = ", ".join(quote_value(".".join(map(str, item["loc"]))) for item in errors)
    return f"was made by another version of loadgen: this one does not know {keys}: use the one that wrote it"


def explain_format(version: Any, reads: int, writer: Any) -> str:
    """Explain that a file of ours has another format than is read, and what wrote it; "" if it has not."""
    if version == reads:
        return ""
    formats = f"it has format {version}, this one reads {reads}"
    if isinstance(version, int) and version > reads:
        return f"was written by a newer loadgen: {formats}"
    by = f"loadgen {clean_line(writer)}" if isinstance(writer, str) and writer else "another loadgen"
    return f"was written by {by}: {formats}: measure again, or use the one that wrote it"


def _explain(item: Mapping[str, Any], origin: str, keys: Collection[str], typed: Collection[str]) -> str:
    """Explain one pydantic error, by its class of requests, flag, or origin and key."""
    place, inside = [str(part) for part in item["loc"]], ""
    if place[:1] == ["server"] and len(place) > 1:
        place, inside, keys = place[1:], "[server] ", ServerSettings.model_fields
    if place[:1] == ["classes"] and len(place) > 2:
        origin = "--class" if "classes" in typed else f"{origin}: [[classes]]"
        return f"{origin} {int(place[1]) + 1}: {place[2]} {quote_value(item['input'])}: {_explain_why(item)}"
    key = place[0] if place else ""
    if item["type"] == "extra_forbidden":
        return f"{origin}: {inside}unknown key {quote_value(key)}{suggest_name(key, keys)}"
    why = _explain_why(item)
    if key in typed and key in _TABLES:
        return f"{find_flag(key)}: {why}"
    if key in typed:
        why = _KEY.sub(lambda found: find_flag(found[0]) if found[0] in keys else found[0], why)
        return f"{find_flag(key)} {quote_value(item['input'])}: {why}"
    return f"{origin}: {inside}{key} = {quote_value(item['input'])}: {why}"


def _explain_why(item: Mapping[str, Any]) -> str:
    """Return the message of one error: a check's own with a small first letter, pydantic's in lower case."""
    why = str(item["msg"])
    own = why.removeprefix(_OWN)
    return why.lower() if own == why else own[:1].lower() + own[1:]
