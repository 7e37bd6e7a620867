"""Server settings: the settings of a server that is started here, in words every engine knows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, ValidationError, field_validator

from loadgen.base.bounds import MOST_SEED, MOST_TOKENS, shown
from loadgen.base.errors import UsageError
from loadgen.base.spelling import nearest

_MOST_GPUS = 1024
_MOST_RUNNING = 1 << 20
Table = TypeVar("Table", bound=BaseModel)


FLAGS = "the flags"  # as the origin of a table: the command line
_FLAGS = {
    **{
        key: f"--random-{key.replace('_', '-')}"
        for key in ("input_len", "output_len", "prefix_len", "range_ratio")
    },
    "classes": "--class",
    "arguments": "--server-args",
    "environment": "--server-env",
    "seed": "--server-seed",
}
_TABLES = ("classes",)  # whose flag was read into a table, which is not as it was typed
_KEY = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")


class ServerSettings(BaseModel, extra="forbid", frozen=True, strict=True, allow_inf_nan=False):
    """The `[server]` table of a profile, or the flags of the same names; None leaves it to the engine."""

    # Tokens, prompt and answer together.
    context_len: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = None
    memory_fraction: Annotated[float, Field(gt=0, le=1)] | None = None  # of the GPU's
    tensor_parallel: Annotated[int, Field(ge=1, le=_MOST_GPUS)] | None = None  # GPUs that share the model
    quantization: Annotated[str, Field(min_length=1)] | None = None
    skip_tokenizer: bool | None = None  # token ids in and out
    prefix_caching: bool | None = None
    seed: Annotated[int, Field(ge=0, le=MOST_SEED)] | None = None
    max_running: Annotated[int, Field(ge=1, le=_MOST_RUNNING)] | None = None  # requests at once
    arguments: Annotated[tuple[str, ...], Field(strict=False)] | None = None  # for the engine, as they are
    environment: dict[str, str] | None = None  # added to the caller's

    @field_validator("arguments", mode="before")
    @classmethod
    def _line(cls, value: Any) -> Any:
        """One string is a command line, as of --server-args."""
        return tuple(shlex.split(value)) if isinstance(value, str) else value

    @field_validator("environment")
    @classmethod
    def _names(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        if any(not name or "=" in name or "\0" in name + value for name, value in (value or {}).items()):
            raise ValueError(
                "a variable's name must not be empty or contain =, and neither it nor its value a zero byte"
            )
        return value

    def overlaid(self, other: ServerSettings) -> ServerSettings:
        """These, with whatever the other gives instead; variables of the environment one by one."""
        given = other.model_dump(exclude_none=True)
        if self.environment and other.environment:
            given["environment"] = {**self.environment, **other.environment}
        return self.model_copy(update=given)


def validated(kind: type[Table], table: Mapping[str, Any], origin: str, typed: Collection[str] = ()) -> Table:
    """What these keys make; raises UsageError that names each wrong key, an unknown one with the nearest.

    The `typed` keys were given as flags and are named so; all are where the origin is FLAGS.
    """
    try:
        return kind.model_validate(dict(table))
    except ValidationError as error:
        raise refusal(error, origin, kind.model_fields, table if origin == FLAGS else typed) from None


def flag_of(key: str) -> str:
    """The flag that gives a key of a profile or of a server's settings."""
    return _FLAGS.get(key, f"--{key.replace('_', '-')}")


def refusal(
    error: ValidationError, origin: str, keys: Collection[str], typed: Collection[str] = ()
) -> UsageError:
    """pydantic's error as ours."""
    return UsageError("; ".join(_explain(item, origin, keys, typed) for item in error.errors()))


def _explain(item: Mapping[str, Any], origin: str, keys: Collection[str], typed: Collection[str]) -> str:
    place, inside = [str(part) for part in item["loc"]], ""
    if place[:1] == ["server"] and len(place) > 1:
        place, inside, keys = place[1:], "[server] ", ServerSettings.model_fields
    if place[:1] == ["classes"] and len(place) > 2:
        origin = "--class" if "classes" in typed else f"{origin}: [[classes]]"
        return f"{origin} {int(place[1]) + 1}: {place[2]} {shown(item['input'])}: {_why(item)}"
    key = place[0] if place else ""
    if item["type"] == "extra_forbidden":
        return f"{origin}: {inside}unknown key {shown(key)}{nearest(key, keys)}"
    why = _why(item)
    if key in typed and key in _TABLES:
        return f"{flag_of(key)}: {why}"
    if key in typed:
        why = _KEY.sub(lambda found: flag_of(found[0]) if found[0] in keys else found[0], why)
        return f"{flag_of(key)} {shown(item['input'])}: {why}"
    return f"{origin}: {inside}{key} = {shown(item['input'])}: {why}"


def _why(item: Mapping[str, Any]) -> str:
    """pydantic's message of one key."""
    return str(item["msg"]).lower().removeprefix("value error, ")
