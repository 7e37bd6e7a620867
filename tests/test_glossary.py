"""What a user reads is in the field's words: the glossary of CONTRIBUTING.md, held for messages and pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from builders.lint import CLIENT, ROOT, RULES, SERVERS, Source, of_each

PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("skills/**/*.md"),
     *ROOT.glob("loadgen/**/*.j2")],
)  # fmt: skip

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


def messages(source: Source) -> Iterator[tuple[int, str]]:
    """The texts of a module that a person may read, and their lines: no docstrings, no keys."""
    keys = {id(key) for node in source.nodes if isinstance(node, ast.Dict) for key in node.keys}
    left_out = source.docstrings | keys
    for node in source.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node.lineno, node.value


@of_each([*CLIENT, *SERVERS])
def test_messages_are_in_the_fields_words(source: Source) -> Iterator[str]:
    for line, text in messages(source):
        if text not in KEYS:
            for found in WORDS.finditer(text):
                yield f"line {line}: {found[0]!r} in {text!r}: write {better_word(found[0])}"


def test_pages_are_in_the_fields_words() -> None:
    wrong = []
    for path in PAGES:
        prose = re.sub(
            r"```.*?```|`[^`\n]+`|<style>.*?</style>", "", path.read_text("utf-8"), flags=re.DOTALL
        )
        if path.name == "CONTRIBUTING.md":
            prose = prose.partition("\n## Words")[0]  # the glossary itself
        wrong += [
            f"{path.name}, line {number}: {found[0]!r}: write {better_word(found[0])}"
            for number, line in enumerate(prose.splitlines(), 1)
            for found in WORDS.finditer(line)
        ]
    assert wrong == []


def test_a_message_is_searched_and_a_docstring_is_not() -> None:
    rule, _ = RULES["test_messages_are_in_the_fields_words"]
    text = '"""The server told us."""\nprint("it told us", {"beside": "trouble"})'
    found = list(rule(Source(ROOT / "made.py", text)))
    assert found == ["line 2: 'told' in 'it told us': write reported, reports"]


def better_word(word: str) -> str:
    """What the field says for a word."""
    return next(better for pattern, better in GLOSSARY.items() if re.fullmatch(pattern, word, re.IGNORECASE))
