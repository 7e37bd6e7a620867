"""API docs: the public API as Markdown, from its docstrings; `scripts/doc_tables.py` writes it into its page.

Every name of `loadgen.__all__` has a section: its signature as the source has it, its docstring, and for a
class its public attributes, properties and methods.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from types import FunctionType, ModuleType, NoneType, UnionType
from typing import Annotated, Any, ForwardRef, Literal, Union, get_args, get_origin

import loadgen


def rendered(module: ModuleType) -> str:
    """Render the sections of the names in a module's `__all__`, functions first."""
    values: dict[str, Any] = {name: getattr(module, name) for name in getattr(module, "__all__", [])}
    values = dict(sorted(values.items(), key=lambda item: inspect.isclass(item[1])))
    held = {kind.__name__: kind for value in values.values() for kind in _held(value)}
    held = {name: kind for name, kind in held.items() if name not in values}
    links = (f"* [`{module.__name__}.{name}`](#{_anchor(value)})" for name, value in values.items())
    sections = ["\n".join(links)]
    for value in values.values():
        sections += _section(value)
    if held:
        sections.append("# Types that they hold and take")
    for kind in held.values():
        sections += [f"## {_heading(kind)}", _text(kind), _attributes(kind)]
    return "\n\n".join(section.strip() for section in sections if section.strip()) + "\n"


def _annotations(value: Any) -> dict[str, Any]:
    """The annotations of a function or of a class's attributes; those of a profile are its settings'."""
    if value is loadgen.Profile:
        return {key: _name_type(field.annotation) for key, field in loadgen.Profile.model_fields.items()}
    return inspect.get_annotations(value)


def _held(value: Any) -> Iterator[type]:
    """The classes of ours that the annotations of a function, or of a class's attributes, name."""
    owners = (owner for owner in getattr(value, "__mro__", [value]) if owner.__module__.startswith("loadgen"))
    there = {name: kind for owner in owners for name, kind in vars(sys.modules[owner.__module__]).items()}
    for annotation in _annotations(value).values():
        for name in re.findall(r"\b[A-Z]\w+", _annotation(annotation)):
            kind = there.get(name)
            if inspect.isclass(kind) and kind.__module__.startswith("loadgen"):
                yield kind


def _heading(value: Any) -> str:
    return f"class {value.__name__}" if inspect.isclass(value) else f"{value.__name__}()"


def _anchor(value: Any) -> str:
    return re.sub(r"[^\w-]", "", _heading(value).lower().replace(" ", "-"))


def _section(value: Any) -> Iterator[str]:
    yield f"## {_heading(value)}"
    if not inspect.isclass(value):
        yield f"```python\n{_signature(value)}\n```"
        yield _text(value)
        return
    if issubclass(value, BaseException):
        yield f"An exception, a `{value.__mro__[1].__name__}`."
    yield _text(value)
    yield _attributes(value)
    for member, function in _members(value, (FunctionType, classmethod, staticmethod)):
        bare = getattr(function, "__func__", function)
        yield f"### {value.__name__}.{member}"
        yield f"```python\n{_signature(bare)}\n```"
        yield _text(bare)


def _attributes(value: type) -> str:
    """A list of what is read of an object: annotated fields, then properties."""
    fields = {key: _annotation(kind) for key, kind in _annotations(value).items()}
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


def _signature(value: Any) -> str:
    """A definition's first line as the source has it, a parameter a line where it is long."""
    head = f"{'async ' if inspect.iscoroutinefunction(value) else ''}def {value.__name__}"
    # The keywords of `**options` have a section of their own, which `__signature__` would repeat.
    signature = inspect.Signature.from_callable(_defined(value))
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
    line = f"{head}({', '.join(parameters)}){returned}"
    if len(line) <= 88:
        return line
    inside = "".join(f"    {parameter},\n" for parameter in parameters)
    return f"{head}(\n{inside}){returned}"


def _defined(value: Any) -> Any:
    """A function as it is defined, without the signature that was set for help()."""
    if "__signature__" not in vars(value):
        return value
    plain = FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__)
    plain.__annotations__, plain.__kwdefaults__ = value.__annotations__, value.__kwdefaults__
    return plain


class _Unquoted(str):
    """An annotation that is printed as it is written, without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _annotation(value: Any) -> str:
    if isinstance(value, ForwardRef):  # of a TypedDict whose module has its annotations as text
        return value.__forward_arg__
    if not isinstance(value, str):
        return inspect.formatannotation(value).replace("typing.", "")  # which Python 3.13 leaves out
    return value


def _name_type(kind: Any) -> str:
    """A type as an annotation has it, without bounds and checks."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _name_type(parts[0])
    if origin in (UnionType, Union):
        return " | ".join(map(_name_type, parts))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, parts))}]"
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(_name_type, parts))}]"
    return {NoneType: "None", ...: "..."}.get(kind) or kind.__name__


def _text(value: Any) -> str:
    """A docstring as Markdown: its examples become code blocks."""
    text = inspect.cleandoc(getattr(value, "__doc__", None) or "")
    return re.sub(r"(?:^>>> .*\n?)+", _example, text, flags=re.MULTILINE)


def _example(lines: re.Match[str]) -> str:
    code = re.sub(r"^>>> ", "", lines[0].rstrip(), flags=re.MULTILINE)
    return f"```python\n{code}\n```\n"
