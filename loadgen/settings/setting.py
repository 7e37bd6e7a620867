"""Setting: one row holds all that is true of a flag, a key of a profile and a keyword; consumers iterate.

A subject is a class whose attributes are its settings: the annotation is the type of the value, and what is
assigned is the row. Checkers read the annotations; at run time a class only holds rows, so that the parser is
made without pydantic. A feature keeps its subjects in its own folder, and the tables join them.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import msgspec

if TYPE_CHECKING:
    from pydantic import BaseModel

Values = Mapping[str, Any]  # of all keys of a profile
NO_KEYWORD = "-"
_UNIONS = (types.UnionType, typing.Union)
OF_A_PROFILE = "belongs in a profile: all checkpoints get the same requests"
# By what --help=NAME calls them, in the order of --help-all.
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


class Identity(Enum):
    """How a setting that makes the load decides whether two runs had the same one."""

    AS_GIVEN = "given"  # by its value
    AS_READ = "read"  # by what was read: it only says which file, and as what
    AS_PLANNED = "planned"  # by what the plan made of it: a file, a shard or a default decides too
    AS_SPREAD = "spread"  # in words of its own, usual or not


class Given(Enum):
    """When a key counts as given, for a conflict with another."""

    SET = "set"  # its value is not its default
    TYPED = "typed"  # it was typed, as a flag or a keyword, and is not from a profile's file
    WRITTEN = "written"  # either


class Conflict(msgspec.Struct, frozen=True):
    """A key, or a condition of all values, that a setting needs or does not go with, and the error's message.

    The message may name `{flag}` and `{other}`, the flags; `{data}`, the flag of the data set; `{found}`,
    what the condition returned; and any key, for its value.
    """

    other: str | Callable[[Values], Any]
    message: str
    given: Given = Given.SET  # the setting itself


class Setting(msgspec.Struct):
    """A row: its value when it is not given, how it is written, and how each consumer treats it.

    `makes` and `default` have no default: neither can be forgotten. Columns from `flag` to `const` are
    argparse's, with its meanings.
    """

    makes: Makes
    default: Any
    help: str | None = None
    group: str = ""  # of --help; "": it has no flag
    common: bool = False  # `bench --help` shows it; --help-all shows every flag
    rank: int = 0  # its place in the group, before the order of the table
    flag: str = ""  # "": its name with dashes
    also: tuple[str, ...] = ()  # other spellings of the flag
    apart: bool = False  # the parser names it as its flag: its own name is another's too, or parsed further
    read: Callable[[str], Any] | None = None  # from a word of the command line; ArgumentTypeError
    metavar: str | None = None
    choices: Sequence[str] | None = None
    action: Any = None
    nargs: str | None = None
    const: Any = None  # of a flag without a value, where `nargs` is "?"
    least: float | None = None  # of a number: here, or in `read`, and not in both
    above: float | None = None
    most: float | None = None
    infinite: bool = False  # a number may be
    convert: Callable[[Any], Any] | None = None  # a value of a file or a call, before its type is checked
    check: Callable[[Any], Any] | None = None  # then; raises ValueError
    keyword: str = ""  # type in calls; "": the annotation without None
    names_server: bool = False  # it makes sense only of a server that runs
    resumes: bool = False  # may differ when a series of runs is resumed: it changes no figure
    compared: Identity = Identity.AS_GIVEN
    arrivals: bool = False  # it gives times at which requests, or sessions, begin
    holds: bool = False  # it holds due requests back: doubts do not blame the client for their waiting
    swept: bool = True  # a sweep may vary it; not what names it, or is a table or a list
    replaces: tuple[str, ...] = ()  # keys of a file that it stands in place of when it is given over them
    needs: tuple[Conflict, ...] = ()  # refused without them, where it is given
    not_with: tuple[Conflict, ...] = ()  # refused with them
    data_sets: tuple[str, ...] = ()  # that it is of, "" a file without a name; (): of all
    answer_len: bool = False  # the length of a data set's own answers, which --output-len is too
    path: bool = False  # of which a campaign fills in ~
    series: str = ""  # why a sweep or a search refuses it
    chat: bool = False  # it needs an API of messages: without --backend, chat is meant where it is given
    cluster: str = ""  # why a cluster refuses it
    shard: bool = False  # is sent to each shard of a cluster
    campaign: str = ""  # why it is not a key of a campaign's tables
    name: str = ""  # the attribute, and the key and keyword
    kind: str = ""  # the annotation, as it is written

    def __post_init__(self) -> None:
        given = any(bound is not None for bound in (self.least, self.above, self.most))
        if given and hasattr(self.read, "most"):
            raise ValueError("bounds are those of `read`, or least, above and most: not in both")

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.kind = name, owner.__annotations__[name]

    @property
    def option(self) -> str:
        """The flag, as --max-concurrency."""
        return self.flag or f"--{self.name.replace('_', '-')}"

    @property
    def dest(self) -> str:
        """The setting's attribute in argparse's result: its name, or its flag's with underscores if apart."""
        return self.option[2:].replace("-", "_") if self.apart else self.name

    @property
    def keyword_type(self) -> str:
        """The type of the keyword, as an annotation; "" where calls have none of this name."""
        return "" if self.keyword == NO_KEYWORD else self.keyword or self.kind.removesuffix(" | None")

    @property
    def bounds(self) -> dict[str, float]:
        """The bounds of a number, its reader's or its own, by pydantic's and msgspec's names: ge, gt, le."""
        own = self.read if hasattr(self.read, "most") else self
        named = {"ge": getattr(own, "least", None), "gt": self.above, "le": getattr(own, "most", None)}
        return {name: value for name, value in named.items() if value is not None}


class Rows:
    """Base of the classes whose attributes are the settings of one subject; `rows` lists them in order."""

    rows: ClassVar[tuple[Setting, ...]] = ()

    def __init_subclass__(cls, **_: object) -> None:
        own = tuple(row for row in vars(cls).values() if isinstance(row, Setting))
        cls.rows = tuple(row for base in cls.__bases__ if issubclass(base, Rows) for row in base.rows) + own


# A class has rows where a checker sees values.
setting: Any = Setting
if TYPE_CHECKING:

    class KeyRows(BaseModel, frozen=True):
        """Keys of a profile, of which each is also a flag and a keyword."""

        rows: ClassVar[tuple[Setting, ...]]

    class OptionRows(msgspec.Struct, frozen=True):
        """Options of a run: fields of `Options`."""

        rows: ClassVar[tuple[Setting, ...]]

else:
    KeyRows = OptionRows = Rows
Subject: TypeAlias = type[Rows] | type[KeyRows] | type[OptionRows]


def make_option_struct(name: str, *subjects: Subject) -> Any:
    """Make a frozen struct class with a field of type Any for each setting of subjects, and its default."""
    fields = [(row.name, Any, row.default) for subject in subjects for row in subject.rows]
    return msgspec.defstruct(name, fields, frozen=True)


def annotate_bounds(kind: Any, row: Setting, constraint: Callable[..., Any]) -> Any:
    """Return a type with the row's bounds, if any, on each int and float of it.

    `constraint` is pydantic's Field or msgspec's Meta, which take ge, gt and le.
    """
    if not row.bounds:
        return kind
    members = [
        typing.Annotated[member, constraint(**row.bounds)] if member in (int, float) else member
        for member in (typing.get_args(kind) if typing.get_origin(kind) in _UNIONS else (kind,))
    ]
    return typing.Union[tuple(members)]  # noqa: UP007 - of as many as there are


def make_model_fields(subjects: Iterable[Subject], names: Mapping[str, Any]) -> dict[str, Any]:
    """Make the fields of a pydantic model, as `create_model` takes them, from the settings of subjects.

    A field has its row's default, bounds, conversion and check. `names` are the types that the annotations
    name and the subjects' modules do not import.
    """
    from pydantic import AfterValidator, BeforeValidator, Field  # parsers are made without it

    fields: dict[str, Any] = {}
    for subject in subjects:
        kinds = typing.get_type_hints(subject, localns=dict(names), include_extras=True)
        for row in subject.rows:
            kind = annotate_bounds(kinds[row.name], row, Field)
            for wrap, check in ((BeforeValidator, row.convert), (AfterValidator, row.check)):
                kind = kind if check is None else typing.Annotated[kind, wrap(check)]
            more: dict[str, Any] = {"allow_inf_nan": True} if row.infinite else {}
            default = {"default_factory": dict} if row.default == {} else {"default": row.default}
            fields[row.name] = (kind, Field(**default, **more))
    return fields
