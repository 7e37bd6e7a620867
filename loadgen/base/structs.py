"""Structs: values with some of their fields changed, the changes checked by their types."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:  # mypy checks the changes by the fields, of a Struct as of a dataclass
    from dataclasses import replace
else:

    def replace(value: Any, /, **changes: Any) -> Any:
        """Return a copy of a Struct or dataclass with these fields changed; raises TypeError for others."""
        if isinstance(value, msgspec.Struct):
            return msgspec.structs.replace(value, **changes)
        return dataclasses.replace(value, **changes)


__all__ = ["replace"]
