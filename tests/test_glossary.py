"""What a user reads is in the field's words: the glossary of CONTRIBUTING.md, held for messages and pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CODE = sorted([*ROOT.glob("loadgen/**/*.py"), *ROOT.glob("servers/**/*.py")])
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("loadgen/**/*.j2")])

# A word of our own making, and what the field says. CONTRIBUTING.md has the table for people.
GLOSSARY = {
    r"told|tells": "reported, reports",
    r"said": "reported",
    r"beside": "next to, compared with",
    r"besides": "other than",
    r"troubles?": "error",
    r"mend(ed|s|ing)?": "fix",
    r"nobody": "no one",
    r"anew": "again",
    r"so many": "N",
    r"of none": "if empty",
    r"(kernel|arrival|receive) stamps?": "timestamp",
    r"in hand": "read lag",
    r"(comes?|came) to rest|at rest": "settles, idle",
    r"by its own word|the server's word": "server-reported",
    r"whoever": "the one that",
    r"in vain": "without effect",
    r"none the worse": "not affected",
}
KEYS = {"beside", "trouble"}  # of JSON that others parse: they stay
WORDS = re.compile(rf"\b({'|'.join(GLOSSARY)})\b", re.IGNORECASE)


def docstrings(tree: ast.AST) -> set[int]:
    """The identities of the docstrings' nodes."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, kinds) and node.body and isinstance(node.body[0], ast.Expr)
    }


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module that a person may read, and their lines: no docstrings, no keys."""
    tree = ast.parse(path.read_text("utf-8"))
    left_out = docstrings(tree) | {
        id(key) for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in node.keys
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node.lineno, node.value


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(ROOT))) for path in CODE])
def test_messages_are_in_the_fields_words(path: Path) -> None:
    wrong = [
        f"line {line}: {found[0]!r} in {text!r}: write {better_word(found[0])}"
        for line, text in messages(path)
        if text not in KEYS
        for found in WORDS.finditer(text)
    ]
    assert wrong == []


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(ROOT))) for path in PAGES])
def test_pages_are_in_the_fields_words(path: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`\n]+`|<style>.*?</style>", "", path.read_text("utf-8"), flags=re.DOTALL)
    if path.name == "CONTRIBUTING.md":
        prose = prose.partition("\n## Words")[0]  # the glossary itself
    wrong = [
        f"line {number}: {found[0]!r}: write {better_word(found[0])}"
        for number, line in enumerate(prose.splitlines(), 1)
        for found in WORDS.finditer(line)
    ]
    assert wrong == []


def better_word(word: str) -> str:
    """What the field says for a word."""
    return next(better for pattern, better in GLOSSARY.items() if re.fullmatch(pattern, word, re.IGNORECASE))
