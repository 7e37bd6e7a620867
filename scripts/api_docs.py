"""docs/api.md from the docstrings of the public API: `python scripts/api_docs.py` writes it.

Every name of `loadgen.__all__` has a section: its signature as the source has it, its docstring, and of a
class its public attributes, properties and methods. A test holds that the page is what this makes.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import loadgen

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
_HEAD = """# Python API

Made from the docstrings by `python scripts/api_docs.py`: change those, not this page.
"""


def main() -> int:
    """Write the page; 0."""
    PAGE.write_text(rendered(loadgen), "utf-8")
    return 0


def rendered(module: ModuleType) -> str:
    """The whole page for the names in a module's `__all__`, in their order there."""
    names: list[str] = [name for name in getattr(module, "__all__", []) if not name.startswith("__")]
    sections = [_HEAD, _text(module)]
    if names:
        sections.append("\n".join(f"* [`{module.__name__}.{name}`](#{name.lower()})" for name in names))
    for name in names:
        sections += _section(name, getattr(module, name))
    return "\n\n".join(section.strip() for section in sections if section.strip()) + "\n"


def _section(name: str, value: Any) -> Iterator[str]:
    yield f"## {name}"
    if not inspect.isclass(value) and not callable(value):
        yield f"```python\n{name} = {value!r}\n```"
        return
    if inspect.isclass(value) and issubclass(value, BaseException):
        yield f"```python\nclass {name}({value.__mro__[1].__name__})\n```"
        yield _text(value)
        return
    yield f"```python\n{_signature(value, name)}\n```"
    yield _text(value)
    if inspect.isclass(value):
        yield _attributes(value)
        for member, function in _members(value, (FunctionType, classmethod, staticmethod)):
            bare = getattr(function, "__func__", function)
            yield f"### {name}.{member}"
            yield f"```python\n{_signature(bare, member)}\n```"
            yield _text(bare)


def _attributes(value: type) -> str:
    """A list of what is read of an object: annotated fields, then properties."""
    fields = {key: _annotation(kind) for key, kind in vars(value).get("__annotations__", {}).items()}
    lines = [f"* `{key}: {kind}`" for key, kind in fields.items() if not key.startswith("_")]
    for key, member in _members(value, (property, cached_property)):
        getter: Any = member.fget if isinstance(member, property) else member.func
        kind = _annotation(inspect.signature(getter).return_annotation)
        lines.append(f"* `{key}: {kind}`: {' '.join(_text(getter).split())}".removesuffix(": "))
    return "\n".join(lines)


def _members(value: type, kinds: tuple[type, ...]) -> Iterator[tuple[str, Any]]:
    """The public members of these kinds, of the class and of those of ours that it inherits from."""
    seen = set()
    for owner in value.__mro__:
        if not owner.__module__.startswith("loadgen"):
            continue
        for key, member in vars(owner).items():
            if not key.startswith("_") and isinstance(member, kinds) and key not in seen:
                seen.add(key)
                yield key, member


def _signature(value: Any, name: str) -> str:
    """A definition's first line as the source has it, a parameter a line where it is long."""
    head = "async def" if inspect.iscoroutinefunction(value) else "class" if inspect.isclass(value) else "def"
    signature = inspect.signature(value)
    parameters: list[str] = []
    keywords_only = False
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords_only:
            parameters.append("*")
        keywords_only |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        if parameter.annotation is not parameter.empty:
            parameter = parameter.replace(annotation=_Unquoted(_annotation(parameter.annotation)))
        parameters.append(str(parameter))
    returned = ""
    if signature.return_annotation not in (signature.empty, None):
        returned = f" -> {_annotation(signature.return_annotation)}"
    line = f"{head} {name}({', '.join(parameters)}){returned}"
    if len(line) <= 88:
        return line
    inside = "".join(f"    {parameter},\n" for parameter in parameters)
    return f"{head} {name}(\n{inside}){returned}"


class _Unquoted(str):
    """An annotation that is printed as it is written, without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _annotation(value: Any) -> str:
    return value if isinstance(value, str) else inspect.formatannotation(value)


def _text(value: Any) -> str:
    return inspect.cleandoc(getattr(value, "__doc__", None) or "")


if __name__ == "__main__":
    sys.exit(main())
