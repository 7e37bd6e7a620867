"""Field tables: what a result stores, as Markdown, from the fields of its types and the comments at them."""

from __future__ import annotations

import ast
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator
from typing import Any, get_args

from loadgen.facts.run_facts import Facts, find_fact_types
from loadgen.plan.profile import Profile
from loadgen.records.record import Columns, Record


def describe_facts() -> Iterator[tuple[str, str]]:
    """The facts of a run by their key in a result, each followed by the described fields of its own type."""
    types = find_fact_types()
    for name, text in describe_fields(Facts).items():
        kind = next(_find_structures(types[name]), None)
        if kind is None or kind is Profile:
            yield name, text
            continue
        fields = describe_fields(kind)
        plain = ", ".join(f"`{field}`" for field, words in fields.items() if not words)
        yield name, (text or _describe(kind)) + (f"; with {plain}" if plain else "")
        yield from ((f"{name}.{field}", words) for field, words in fields.items() if words)


def describe_arrays() -> Iterator[tuple[str, str]]:
    """The arrays of `arrivals.npz` that have a value a request."""
    fields = describe_fields(Record)
    return ((name, fields[name]) for name in Columns.__struct_fields__)


def describe_fields(kind: type) -> dict[str, str]:
    """The fields of a class or an enum, each with the comment behind it, else in the lines before it."""
    source = textwrap.dedent(inspect.getsource(kind))
    comments, alone = {}, set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string.lstrip("# ")
            if token.line.lstrip().startswith("#"):
                alone.add(token.start[0])
    (definition,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    fields = {}
    for node in definition.body:
        if not isinstance(node, ast.AnnAssign | ast.Assign):
            continue
        first, last = node.lineno, node.end_lineno or node.lineno
        behind = any(line in comments for line in range(first, last + 1))
        while not behind and first - 1 in alone:
            first -= 1
        lines = (comments[line] for line in range(first, last + 1) if line in comments)
        (target,) = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
        fields[ast.unparse(target)] = _make_phrase(" ".join(lines))
    return fields


def _describe(kind: type) -> str:
    return _make_phrase(inspect.cleandoc(kind.__doc__ or "").partition("\n")[0])


def _make_phrase(text: str) -> str:
    """A comment as a cell has it: JSON's null, and no sentence's capital or stop, as most comments are."""
    text = re.sub(r"\bNone\b", "null", text).replace("|", "\\|").removesuffix(".")
    return text[:1].lower() + text[1:] if re.match(r"[A-Z][a-z ]", text) else text


def _find_structures(hint: Any) -> Iterator[type]:
    """The types of ours that an annotation names, with fields of their own."""
    if inspect.isclass(hint) and hint.__module__.startswith("loadgen") and inspect.get_annotations(hint):
        yield hint
    for each in get_args(hint):
        yield from _find_structures(each)
