"""Secrecy: the one place that hides secrets: those known in this command, and what looks like one.

`Secrets` has the values that are known, and hides them in what servers write and in what is stored;
`hide_secrets` is for texts in which only names and forms show them: flags, labels, variables, logs.
"""

from __future__ import annotations

import base64
import html
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from html.entities import html5
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

import msgspec

from loadgen.base import untrusted
from loadgen.base.errors import LoadgenError

HIDDEN = "***"
# A shorter value is not a key but a placeholder as `EMPTY`, a word that may occur anywhere.
_LEAST_CHARACTERS = 6
_LEAST_CUT = 8  # characters of a secret that is cut off at a text's end
_LEAST_CASED = 12  # characters of a secret that is searched for in other cases, too
_DIGIT = re.compile(r"\d")
_MOST_SPELLED = 64  # characters of a secret that are searched for in every spelling
_MOST_LAYERS = 8  # of escapes, one in another
_ESCAPES = frozenset("%\\&")  # one of them is in every text that is escaped
_GROUP = 3  # bytes that base64 writes together
_URL_SAFE = str.maketrans("+/", "-_")
_HEX_SEPARATORS = ("", ":", " ", "-")
_CUT_MARKS = "….\"' "
_COOKIES = ("cookie", "set-cookie")

# A name whose last word marks a secret; `max-tokens` and `TOKENIZERS_…` are not such names.
_KEY = (
    r"(?:[a-z0-9]+[-_.])*"
    r"(?:api_?keys?|key|key[-_]id|token|secret|password|passwd|passphrase|credentials?|auth|authorization)"
)
# Secrets by their own form, whatever name stands before them.
_CREDENTIALS = (
    re.compile(r"(\bBearer\s+)[\w.~+/=-]+", re.IGNORECASE),
    re.compile(r"(?<=://)()[^/\s@]+(?=@)"),
    re.compile(r"(\b(?:hf_|sk-|nvapi-|ghp_))\w[\w-]{15,}"),
)
_SECRETS = (
    # --api-key A B: every word up to the next flag
    re.compile(
        rf"((?<![\w-])--?{_KEY}(?:=|\s+))(?:\"[^\"]*\"|'[^']*'|(?!--)\S+)(?:\s+(?!-)[^\s'\"]+)*",
        re.IGNORECASE,
    ),
    # NAME=VALUE, 'name': 'value', name=['value', …]
    re.compile(
        rf"((?<![\w.-])['\"]?{_KEY}['\"]?\s*[=:]\s*)(?!None\b|null\b)"
        r"(?:\[[^\[\]]*\]|\"[^\"]*\"|'[^']*'|(?:(?:Bearer|Basic|Token)\s+)?[^\s,;}'\"]+)",
        re.IGNORECASE,
    ),
    *_CREDENTIALS,
)
# Names by which HTML writes an ASCII character: most have none, some several.
_ENTITIES: dict[str, list[str]] = {}
for _name, _character in html5.items():
    if _name.endswith(";") and _character.isascii():
        _ENTITIES.setdefault(_character, []).append(_name[:-1])
_SECRET_FLAG = re.compile(rf"--?{_KEY}", re.IGNORECASE)
_SECRET_NAME = re.compile(_KEY, re.IGNORECASE)
_HEADER = re.compile(r"\s*[\w!#$%&'*+.^`|~-]+(?=\s*[=:])")


@lru_cache(maxsize=4096)  # the fields of one run's facts are asked for several times
def is_secret(name: str) -> bool:
    """Whether a key, header or variable is named like a secret: api_key, authToken; not max_tokens."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip())
    return _SECRET_NAME.fullmatch(words) is not None


def hide_secrets(text: str) -> str:
    """Replace in a text what looks like a secret: values of keys and tokens, URL logins, Bearer tokens."""
    return _remove_matches(_SECRETS, text)


def _remove_matches(patterns: Iterable[re.Pattern[str]], text: str) -> str:
    for pattern in patterns:
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return text


def hide_url_secrets(url: str) -> str:
    """Reduce a URL, valid or not, to scheme, host, port and path, 300 characters at most."""
    front = url.partition("?")[0].partition("#")[0]
    scheme, slashes, rest = front.rpartition("//")
    authority, slash, path = rest.partition("/")
    return untrusted.read_text(f"{scheme}{slashes}{authority.rpartition('@')[2]}{slash}{path}")


class Secrets(msgspec.Struct, frozen=True):
    """The secret texts of this command, longest first, in every encoding in which a server may echo them.

    A secret that may be escaped character by character, as in a URL, is matched by a pattern of `values`.
    """

    forms: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    @classmethod
    def collect(
        cls,
        headers: Mapping[str, str] | None = None,
        tables: Iterable[Any] = (),
        url: str = "",
        arguments: Iterable[str] = (),
    ) -> Secrets:
        """Collect what names or a header's form mark as secrets, and a URL's login; 6 characters or more."""
        values = {
            *(value for name, header in (headers or {}).items() for value in _find_in_header(name, header)),
            *(value for table in tables for value in _find_in_table(table)),
            *_find_in_url(url),
            *_find_in_arguments(arguments),
        }
        kept = {stripped for value in values if len(stripped := value.strip()) >= _LEAST_CHARACTERS}
        return cls() | cls(tuple(form for value in kept for form in _encode_forms(value)), tuple(kept))

    @classmethod
    def collect_exported(cls, variables: Mapping[str, str]) -> Secrets:
        """Collect what other services are reached with: variables named like secrets, OTLP's headers, logins.

        A collector or a tracker may repeat them where it refuses what is sent to it.
        """
        secrets = cls.collect(tables=(dict(variables),))
        for name, value in variables.items():
            if name.startswith("OTEL_") and name.endswith("_HEADERS"):  # any of them may be the key
                values = [pair.partition("=")[2] for pair in value.split(",")]
                secrets |= cls.collect(tables=({"key": [*values, *map(unquote, values)]},))
            elif "://" in value:
                secrets |= cls.collect(url=value)
        return secrets

    def __or__(self, other: Secrets) -> Secrets:
        return Secrets(
            *(
                tuple(sorted({*ours, *theirs}, key=lambda text: (-len(text), text)))
                for ours, theirs in ((self.forms, other.forms), (self.values, other.values))
            )
        )

    def __repr__(self) -> str:
        return f"Secrets({len(self.forms)} forms)"

    def conceal(self, text: str) -> str:
        """Replace these secrets in a text by ***, also the first 8 or more characters of one at its end."""
        if len(text) < _LEAST_CHARACTERS:
            return text
        if not _ESCAPES.isdisjoint(text):
            for value in self.values:
                text = _compile_spellings(value).sub(HIDDEN, text)
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
        """Replace these secrets in a server's text, and Bearer tokens, URL logins and keys such as hf_…."""
        return _remove_matches(_CREDENTIALS, self.conceal(text))

    def mask(self, value: Any, names_too: bool = False) -> Any:
        """Return a JSON value without these secrets in its texts, nor texts and tables under secret names.

        With `names_too`, also what `hide_secrets` recognizes inside the texts.
        """
        if isinstance(value, str):
            return hide_secrets(self.conceal(value)) if names_too else self.conceal(value)
        if isinstance(value, dict):
            return {
                self.conceal(str(name)): HIDDEN
                if is_secret(str(name)) and isinstance(item, str | dict | list | tuple) and item
                else self.mask(item, names_too)
                for name, item in value.items()
            }
        if isinstance(value, list | tuple):
            if value and isinstance(value[0], int | float):  # columns of numbers may be long
                return value
            return [self.mask(item, names_too) for item in value]
        return value

    @contextmanager
    def hide_in_errors(self) -> Iterator[None]:
        """Replace these secrets in the message of a LoadgenError that leaves the block."""
        try:
            yield
        except LoadgenError as error:
            error.args = tuple(self.conceal(str(part)) for part in error.args)
            raise


def hide_argument_secrets(argv: Sequence[str] | None = None) -> list[str]:
    """Return a command line's words, the values of headers, keys and tokens hidden; None: this process's."""
    words, header, secret = [], False, False
    for word in sys.argv if argv is None else argv:
        if word.startswith("--") or (word.startswith("-") and not secret):
            name, equals, _ = word.partition("=")
            header, secret = name == "--header", _SECRET_FLAG.fullmatch(name) is not None
            words.append(f"{name}={HIDDEN}" if equals and (header or secret) else hide_secrets(word))
        elif header:
            named = _HEADER.match(word)  # without a name all of it may be the key
            words.append(f"{named[0]}={HIDDEN}" if named else HIDDEN)
        else:
            words.append(HIDDEN if secret else hide_secrets(word))
    return words


def _find_in_header(name: str, value: str) -> Iterator[str]:
    """Yield a header's value if its name or form marks a secret, then its cookies, credentials, password."""
    if not is_secret(name) and name.lower() not in _COOKIES and hide_secrets(value) == value:
        return
    yield value
    if name.lower() in _COOKIES:
        yield from (pair.partition("=")[2] for pair in value.split(";"))
    scheme, _, credentials = value.partition(" ")
    if credentials:
        yield credentials.strip()
    if scheme.lower() == "basic":
        with suppress(ValueError):  # binascii.Error and UnicodeDecodeError are such
            decoded = base64.b64decode(credentials, validate=True).decode()
            yield from (decoded, decoded.partition(":")[2])


def _find_in_table(table: Any, secret: bool = False) -> Iterator[str]:
    """Yield each text under a secret name in nested tables and lists, every text if `secret`."""
    if isinstance(table, dict):
        for name, value in table.items():
            yield from _find_in_table(value, secret or is_secret(str(name)))
    elif isinstance(table, list | tuple):
        for value in table:
            yield from _find_in_table(value, secret)
    elif isinstance(table, str) and secret:
        yield table


def _find_in_arguments(arguments: Iterable[str]) -> Iterator[str]:
    """Yield the values of flags named like secrets: after =, and each word up to the next flag."""
    secret = False
    for word in arguments:
        if word.startswith("-"):
            name, equals, value = word.partition("=")
            secret = is_secret(name.lstrip("-"))
            if secret and equals:
                yield value
        elif secret:
            yield word


def _find_in_url(url: str) -> Iterator[str]:
    """Yield a URL's password, else its user name, and its query's values under secret names."""
    try:
        parts = urlsplit(url)
        name, password = parts.username, parts.password
    except ValueError:
        return
    if credential := password or name:  # a name without a password is a key
        yield from (credential, unquote(credential))
    yield from (value for name, value in parse_qsl(parts.query) if is_secret(name))


def _encode_forms(value: str) -> Iterator[str]:
    """Yield a secret as it is, and as JSON, URLs, HTML, Python, base64 and hex write it.

    Also in other cases if it has 12 or more characters and a digit.
    """
    escaped, encoded = json.dumps(value)[1:-1], value.encode("utf-8", "surrogateescape")
    yield from (escaped, escaped.replace("/", "\\/"), json.dumps(value, ensure_ascii=False)[1:-1])
    yield from (value, quote(value, safe=""), quote(value), quote_plus(value), html.escape(value))
    yield repr(value)[1:-1]
    # Each offset yields the part of the base64 text that the bytes around it do not change.
    for offset in range(_GROUP):
        whole = base64.b64encode(bytes(offset) + encoded).decode().rstrip("=")
        core = whole[offset + 1 if offset else 0 :]  # the characters before it hold bits of other bytes, too
        for part in (core, core[:-1] if (offset + len(encoded)) % _GROUP else core):
            yield from (part, part.translate(_URL_SAFE))
    for separator in _HEX_SEPARATORS:
        digits = encoded.hex(separator) if separator else encoded.hex()
        yield from (digits, digits.upper())
    if len(value) >= _LEAST_CASED and _DIGIT.search(value):  # a word without digits may stand anywhere
        yield from (value.lower(), value.upper(), value.swapcase())


@lru_cache(maxsize=64)
def _compile_spellings(value: str) -> re.Pattern[str]:
    """Compile a pattern that matches a secret however JSON, JavaScript, URLs or HTML escape it.

    Of a secret over 64 characters only these first ones are matched, and the rest of its word with them.
    """
    begin = "".join(map(_match_spellings, value[:_MOST_SPELLED]))
    return re.compile(begin + (r"[\w.~+/=%\\&#;:-]*" if len(value) > _MOST_SPELLED else ""))


def _match_spellings(character: str) -> str:
    """Make a pattern that matches one character in each of its escaped forms, escaped 8 times at most."""
    number, itself = ord(character), re.escape(character)
    octets = character.encode("utf-8", "surrogateescape")
    words = character.encode("utf-16-be", "surrogatepass")
    units = [words[at : at + 2].hex() for at in range(0, len(words), 2)]
    names = "".join(f"|{name}" for name in _ENTITIES.get(character, ()))
    in_json = "".join(rf"\\{{1,{_MOST_LAYERS}}}u(?i:{unit})" for unit in units)
    in_html = rf"#0{{0,8}}{number}|#[xX]0{{0,8}}(?i:{number:x}){names}"
    # Each way begins with a letter of its own, so that places where none does are passed over at once.
    ways = [
        itself,
        "".join(rf"%(?:25){{0,{_MOST_LAYERS}}}(?i:{octet:02x})" for octet in octets),
        rf"\\{{1,{_MOST_LAYERS}}}(?:{itself}|x(?i:{number:02x}))",
        in_json,
        rf"&(?:amp;){{0,{_MOST_LAYERS}}}(?:{in_html});",
    ]
    return f"(?:{'|'.join((*ways, '[+]') if character == ' ' else ways)})"
