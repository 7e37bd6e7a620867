"""Setting: what a field's annotation says of it, of which flag, key of a profile and keyword are made.

A subject is a class whose fields are settings, each `name: Annotated[type, Setting(…)] = default`:
checkers, an editor and the run time see that class. Keys of a profile are pydantic models: their values come
from files, whose errors pydantic explains, and one profile inherits them all, which no Struct of msgspec can.
Options of a run are frozen dataclasses: the parser has checked each value before it is one.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from pydantic import BaseModel, Field, GetCoreSchemaHandler

from loadgen.base.parsing import Bounded

if typing.TYPE_CHECKING:
    from pydantic_core import CoreSchema

Values = Mapping[str, Any]  # of all keys of a profile
_UNIONS = (types.UnionType, typing.Union)
# --help=NAME calls the groups by these names; --help-all has this order.
GROUPS = {
    "server": "server",
    "launch": "a server started for the run",
    "workload": "workload",
    "shapes": "load over time, and classes (docs/load-shapes.md)",
    "sessions": "sessions of several turns (docs/sessions.md)",
    "data": "data (docs/datasets.md)",
    "images": "images (docs/images.md)",
    "lengths": "lengths and text of random prompts",
    "traces": "traces (docs/traces.md)",
    "requests": "requests",
    "run": "the run",
    "shards": "one plan sent by several commands (docs/shards.md)",
    "cluster": "a plan sent from a Ray cluster (docs/shards.md)",
    "stop": "rules to stop (docs/reliability.md)",
    "roofline": "roofline",
    "output": "output",
}
GROUP_ORDER = tuple(GROUPS.values())
(
    SERVER, LAUNCH, WORKLOAD, SHAPES, SESSIONS, DATA, IMAGES, LENGTHS, TRACES,
    REQUESTS, RUN, SHARDS, CLUSTER, STOP, ROOFLINE, OUTPUT,
) = GROUP_ORDER  # fmt: skip
UNLISTED = "none"  # flags that no help lists


class Makes(Enum):
    """The thing a setting changes, and (behind the colon) how two runs that differ in it are compared."""

    LOAD = "load"  # which requests are sent, how many, and when: no verdict; a mark names what differs
    REQUEST = "request"  # what each of them asks of the server: compared, in rows of their own, with a mark
    CLIENT = "client"  # how the client connects, sends, warms up, waits and trims: compared, with a mark
    NOTHING = "nothing"  # names, files, and which figures are printed: compared, without a mark


class Given(Enum):
    """When a key counts as given, for a conflict with another."""

    SET = "set"  # its value is not its default
    TYPED = "typed"  # it was typed, as a flag or a keyword, and is not from a profile's file
    WRITTEN = "written"  # either


class Conflict(msgspec.Struct, frozen=True):
    """A key, or a condition of all values, that a setting does not go with, and the error's message.

    The message may name `{flag}` and `{other}`, the flags; `{data}`, the flag of the data set; `{found}`,
    what the condition returned; and any key, for its value.
    """

    other: str | Callable[[Values], Any]
    message: str
    given: Given = Given.SET  # the setting itself


class Requirement(Conflict, frozen=True):
    """A key, or a condition, without which a setting is refused where it is given."""


class Setting(msgspec.Struct, frozen=True):
    """What a field of a subject is as a flag, and what it makes of a run; type and default say the rest.

    A number is read by its type, a choice of a Literal from its words, and a bool is a switch.
    `makes` has no default: it cannot be forgotten.
    """

    makes: Makes
    help: str | None = None
    group: str = ""  # of --help; "": it has no flag
    rank: int = 0  # its place in the group, before the order of the table
    common: bool = False  # `bench --help` shows it; --help-all shows every flag
    flag: str = ""  # "": its name with dashes
    read: Callable[[str], Any] | None = None  # from a word of the command line; ArgumentTypeError
    metavar: str | None = None
    action: Literal["append", "extend", "store_true"] | None = None  # argparse's; None: by its type
    rules: tuple[Conflict, ...] = ()  # what it needs, and then what it does not go with
    names_server: bool = False  # it makes sense only of a server that runs
    resumes: bool = False  # may differ when a series of runs is resumed: it changes no figure

    def __repr__(self) -> str:
        return f"Setting({self.help!r})"  # as the signature of Profile shows it

    @property
    def bounds(self) -> dict[str, float]:
        """The bounds of its reader, by pydantic's and msgspec's names: ge, le; {} if it has none."""
        return {"ge": self.read.least, "le": self.read.most} if isinstance(self.read, Bounded) else {}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Make pydantic hold a value of a file to the bounds that its reader holds a flag to."""
        return handler(annotate_bounds(source, self.bounds, Field))


class SettingRow(Setting, frozen=True, kw_only=True):
    """A setting with its field's name, default and the types that it may have."""

    name: str
    default: Any
    kinds: tuple[Any, ...]
    option: str  # the flag, as --max-concurrency
    # Its attribute in argparse's result: the name, or of a start the flag's, since a name of a start may be
    # another setting's too; headers are parsed further.
    dest: str


@cache
def list_rows(*subjects: type) -> tuple[SettingRow, ...]:
    """List the settings of several subjects, each in the order of its fields."""
    rows = []
    for subject in subjects:
        if issubclass(subject, BaseModel):
            fields = subject.model_fields.items()
            defaults = {name: field.get_default(call_default_factory=True) for name, field in fields}
        else:
            defaults = vars(subject())
        hints = typing.get_type_hints(subject, include_extras=True)
        for name in subject.__annotations__:
            kind, *said = get_args(hints[name])
            (setting,) = (each for each in said if isinstance(each, Setting))
            option = setting.flag or f"--{name.replace('_', '-')}"
            dest = option[2:].replace("-", "_") if setting.group == LAUNCH or name == "headers" else name
            own = msgspec.structs.asdict(setting)
            kinds = list_kinds(kind)
            rows.append(
                SettingRow(**own, name=name, default=defaults[name], kinds=kinds, option=option, dest=dest)
            )
    return tuple(rows)


def list_kinds(annotation: Any) -> tuple[Any, ...]:
    """List the types of which an annotation is the union, without bounds and checks."""
    if get_origin(annotation) is Annotated:
        return list_kinds(annotation.__origin__)
    if get_origin(annotation) in _UNIONS:
        return tuple(kind for member in get_args(annotation) for kind in list_kinds(member))
    return (annotation,)


def convert_number(value: Any) -> Any:
    """Return an int or a float, as TOML or Python may give one, as text; other values unchanged."""
    return str(value) if type(value) in (int, float) else value


def annotate_bounds(kind: Any, bounds: Mapping[str, float], constraint: Callable[..., Any]) -> Any:
    """Return a type with bounds, if any, on each int and float of it.

    `constraint` is pydantic's Field or msgspec's Meta, which take ge and le.
    """
    if not bounds:
        return kind
    members = [
        Annotated[member, constraint(**bounds)] if member in (int, float) else member
        for member in (get_args(kind) if get_origin(kind) in _UNIONS else (kind,))
    ]
    return typing.Union[tuple(members)]  # noqa: UP007 - of as many as there are


def make_check(parse: Callable[[str], object]) -> Callable[[str], str]:
    """Make a check that returns a text unchanged, and raises what `parse` raises unless the text is empty."""

    def check_text(text: str) -> str:
        if text:
            parse(text)
        return text

    return check_text
