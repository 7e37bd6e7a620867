"""Client: the flags of another benchmark client, each under what it is here."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

Words = Mapping[str, str]


class OtherClient(msgspec.Struct, frozen=True):
    """Another client's flags. Each is in one table of these, with what there is to know of it.

    `command` is how it is started, `versions` are those whose flags these are.
    """

    name: str
    command: str
    versions: str
    same: Words  # spelled and meant as here
    differs: Words  # spelled as here, with another meaning
    renamed: Words  # the flag of ours that means it
    no_effect: Words  # accepted, and why nothing changes by it
    refused: Words  # why, and the nearest way

    def rows(self) -> list[tuple[str, str, str]]:
        """Each flag, what it is here in a word or two, and what there is to know; in alphabetical order."""
        tables = {
            "same": self.same,
            "differs": self.differs,
            "another name": self.renamed,
            "no effect": self.no_effect,
            "refused": self.refused,
        }
        rows = [(flag, what, words) for what, table in tables.items() for flag, words in table.items()]
        return sorted(rows, key=lambda row: row[0].lstrip("-").lower())

    def explained(self, flag: str) -> str | None:
        """What to say of a flag that is not accepted: ours, or why there is none; None: not its flag."""
        if flag in self.renamed:
            return f"{flag} of `{self.command}` is {self.renamed[flag]} here"
        if flag in self.refused:
            return f"{flag} of `{self.command}` is not supported: {self.refused[flag]}"
        return None


def by_flag(flags_by_words: Words) -> dict[str, str]:
    """Flag → words, from words → flags with spaces between them."""
    return {flag: words for words, flags in flags_by_words.items() for flag in flags.split()}
