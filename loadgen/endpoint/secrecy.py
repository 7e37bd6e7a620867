"""Secrecy: the values that are known to be secret in this command, and texts without them."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, urlsplit

import msgspec

from loadgen.errors import LoadgenError
from loadgen.telemetry.environment import HIDDEN, hide, hide_credentials, is_secret

# What is shorter is no key but a placeholder as `EMPTY`, and a word that may stand anywhere.
_LEAST_CHARACTERS = 6
_LEAST_CUT = 8  # characters of a secret that was cut at a text's end
_CUT_MARKS = "….\"' "
_COOKIES = ("cookie", "set-cookie")


class Secrets(msgspec.Struct, frozen=True):
    """Texts that must not be written, the longest first: each secret in every form it is echoed in."""

    forms: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, headers: Mapping[str, str] | None = None, tables: tuple[Any, ...] = (), url: str = ""
    ) -> Secrets:
        """Those in headers, in tables by the names of their keys, and in a URL's query and user."""
        found = {value for name, said in (headers or {}).items() for value in _in_header(name, said)}
        for table in tables:
            found.update(_in_table(table))
        found.update(_in_url(url))
        return cls(_longest_first({form for value in found for form in _forms(value)}))

    def __or__(self, other: Secrets) -> Secrets:
        return Secrets(_longest_first({*self.forms, *other.forms}))

    def __repr__(self) -> str:
        return f"Secrets({len(self.forms)} forms)"

    def conceal(self, text: str) -> str:
        """A text without these secrets, nor the beginning of one where the text was cut inside it."""
        for form in self.forms:
            text = text.replace(form, HIDDEN)
        end = text.rstrip(_CUT_MARKS)
        for form in self.forms:
            if form[:_LEAST_CUT] not in end[-len(form) :]:
                continue
            for length in range(min(len(form) - 1, len(end)), _LEAST_CUT - 1, -1):
                if end.endswith(form[:length]):
                    return end[:-length] + HIDDEN + text[len(end) :]
        return text

    def hide(self, text: str) -> str:
        """A text of a server's without these secrets, nor others that are known by their form."""
        return hide_credentials(self.conceal(text))

    def mask(self, value: Any) -> Any:
        """A value of JSON without these secrets, nor texts under names of secrets."""
        if isinstance(value, str):
            return self.conceal(value)
        if isinstance(value, dict):
            return {
                self.conceal(str(name)): HIDDEN if is_secret(str(name)) and _given(one) else self.mask(one)
                for name, one in value.items()
            }
        if isinstance(value, list | tuple):
            if value and isinstance(value[0], int | float):  # columns of numbers may be long
                return value
            return [self.mask(one) for one in value]
        return value

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Errors of this tool that leave the block hold none of these secrets."""
        try:
            yield
        except LoadgenError as error:
            error.args = tuple(self.conceal(str(part)) for part in error.args)
            raise


def _given(value: Any) -> bool:
    """Whether there is something to hide."""
    return isinstance(value, str | dict | list | tuple) and bool(value)


def _in_header(name: str, value: str) -> Iterator[str]:
    """A header's value where its name, or its form, says that it is a secret; of `Bearer X` the X too."""
    if not is_secret(name) and name.lower() not in _COOKIES and hide(value) == value:
        return
    yield value
    if name.lower() in _COOKIES:
        yield from (pair.partition("=")[2] for pair in value.split(";"))
    scheme, _, credentials = value.partition(" ")
    if credentials:
        yield credentials.strip()
    if scheme.lower() == "basic":
        decoded = _decoded(credentials)
        yield decoded
        yield decoded.partition(":")[2]


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:  # binascii.Error and UnicodeDecodeError are such
        return ""


def _in_table(table: Any, secret: bool = False) -> Iterator[str]:
    if isinstance(table, dict):
        for name, value in table.items():
            yield from _in_table(value, secret or is_secret(str(name)))
    elif isinstance(table, list | tuple):
        for value in table:
            yield from _in_table(value, secret)
    elif isinstance(table, str) and secret:
        yield table


def _in_url(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
        password = parts.password
    except ValueError:
        return
    if password:
        yield password
    yield from (value for name, value in parse_qsl(parts.query) if is_secret(name))


def _forms(value: str) -> Iterator[str]:
    """A secret as it stands, and as JSON, a URL, HTML, Python or base64 write it."""
    value = value.strip()
    if len(value) < _LEAST_CHARACTERS:
        return
    yield value
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield json.dumps(value)[1:-1].replace("/", "\\/")
    yield quote(value, safe="")
    yield quote(value)
    yield quote_plus(value)
    yield html.escape(value)
    yield repr(value)[1:-1]
    encoded = value.encode("utf-8", "surrogateescape")
    yield base64.b64encode(encoded).decode().rstrip("=")
    yield base64.urlsafe_b64encode(encoded).decode().rstrip("=")


def _longest_first(forms: set[str]) -> tuple[str, ...]:
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))
