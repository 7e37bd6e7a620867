"""Key roles: what each key of a profile makes, declared where the key is, and the keys that make one thing.

Two runs are of one load only where every key that makes the load is equal. So no role is the default: a key
that is declared without one is an error as soon as any consumer asks.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, TypeVar

from pydantic import BaseModel

T = TypeVar("T")


class Role(Enum):
    """What a key of a profile makes; each with what follows where two runs differ in it."""

    LOAD = "load"  # which requests are sent, how many, and when: no verdict, and two loads are shown
    REQUEST = "request"  # what each of them asks of the server: a row of its own, and a mark
    CLIENT = "client"  # how the client warms up, waits and trims: a mark
    NOTHING = "nothing"  # names, and which figures are printed: nothing follows


OfLoad = Annotated[T, Role.LOAD]
OfRequest = Annotated[T, Role.REQUEST]
OfClient = Annotated[T, Role.CLIENT]
OfNothing = Annotated[T, Role.NOTHING]


def role_of(keys: type[BaseModel], name: str) -> Role:
    """The role of a key; raises TypeError where none is declared, or two are."""
    roles = [item for item in keys.model_fields[name].metadata if isinstance(item, Role)]
    if len(roles) != 1:
        raise TypeError(f"{keys.__name__}.{name} has {len(roles)} roles: declare one, as OfLoad[…]")
    return roles[0]


def keys_of(keys: type[BaseModel], *roles: Role) -> tuple[str, ...]:
    """The keys that have one of these roles, in the order of their declaration."""
    return tuple(name for name in keys.model_fields if role_of(keys, name) in roles)
