"""Credentials: the API key, from the environment or a file, and what is secret in a command with it."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import msgspec

from loadgen.base import untrusted
from loadgen.base.errors import UsageError
from loadgen.base.secrecy import Secrets
from loadgen.base.urls import choose_key_headers
from loadgen.run.command.options import Options

_LOG = logging.getLogger("loadgen")
DEFAULT_VARIABLE = "OPENAI_API_KEY"
NO_KEY = ""  # as Options.api_key_env: no key at all, whatever the environment holds
_LONGEST_FILE = 1 << 16  # bytes
_AUTHORIZATION = "authorization"
_KEY_HEADERS = (_AUTHORIZATION, "api-key", "x-api-key")


class Credentials(msgspec.Struct, frozen=True):
    """The headers of every request, the secrets in them and elsewhere, and where the key came from."""

    headers: dict[str, str]
    secrets: Secrets
    variables: tuple[str, ...] = ()  # of the environment, that no server started here inherits
    origin: str = ""  # where the key came from, in words; "": there is none


def collect_credentials(options: Options, own: bool = False, *more: object) -> Credentials:
    """Collect a command's headers and secrets; raises UsageError for an invalid key, never shown.

    A header of --header is never replaced by the API's own, nor by the key, which is not read if one is an
    Authorization. `own`: the server is started here, and gets a key only if a flag names one. `more` are
    tables with secrets.
    """
    check_key_flags(options)
    typed = {name.lower() for name in options.headers}
    of_api = {name: value for name, value in options.api_headers.items() if name not in typed}
    headers = {**options.headers, **of_api}
    given = _find_key_header(options)
    authorized = given.lower() == _AUTHORIZATION
    asked = bool(options.api_key_env or options.api_key_file)
    key = "" if authorized or (own and not asked) else read_api_key(options.api_key_env, options.api_key_file)
    origin = given and f"the header {given}"
    named = {name.lower() for name in headers}
    for name in choose_key_headers(options.base_url, named):
        if key and name.lower() not in named:
            headers[name] = f"Bearer {key}" if name == "Authorization" else key
            flag = f"--api-key-env {options.api_key_env}" if options.api_key_env else DEFAULT_VARIABLE
            in_file = options.api_key_file is not None
            origin = f"--api-key-file {options.api_key_file}" if in_file else flag
    launching = options.launching
    tables = (options.overrides, launching.settings, *more)
    secrets = Secrets.collect(headers, tables, url=options.endpoint or "")
    for url in options.urls:
        secrets |= Secrets.collect(url=url)
    secrets |= Secrets.collect(arguments=launching.settings.get("arguments") or ())
    return Credentials(headers, secrets, (options.api_key_env,) if options.api_key_env else (), origin)


def check_key_flags(options: Options) -> None:
    """Raise UsageError if two of --api-key-env, --api-key-file and an Authorization header are given."""
    if options.api_key_env and options.api_key_file:
        raise UsageError("--api-key-env and --api-key-file: give one of them")
    if _find_key_header(options).lower() == _AUTHORIZATION and (options.api_key_env or options.api_key_file):
        raise UsageError("--header has an Authorization already: leave out --api-key-env and --api-key-file")


def _find_key_header(options: Options) -> str:
    """Return the name of the first given header that is for a key, as written; "" if there is none."""
    return next((name for name in options.headers if name.lower() in _KEY_HEADERS), "")


def read_api_key(variable: str | None, file: str | None) -> str:
    """Read the API key from a file, the named variable, or else OPENAI_API_KEY, stripped.

    "" if `variable` is, or neither is named and OPENAI_API_KEY is not set. Raises UsageError that names the
    source.
    """
    if variable and file:
        raise UsageError("--api-key-env and --api-key-file: give one of them")
    if file is not None:
        return check_key(_read_key_file(file), f"--api-key-file {file}")
    if variable == NO_KEY:
        return ""
    if variable is None:
        key = os.environ.get(DEFAULT_VARIABLE, "")
        return check_key(key, DEFAULT_VARIABLE) if key.strip() else ""
    if variable not in os.environ:
        raise UsageError(f"--api-key-env {variable}: it is not set in the environment: export {variable}=…")
    return check_key(os.environ[variable], f"--api-key-env {variable}")


def check_key(text: str, origin: str) -> str:
    """Return the key in a text, stripped; raises UsageError, which never shows it, if not a word of ASCII."""
    key = text.strip()
    if not key:
        raise UsageError(f"{origin} is empty: write the API key to it")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(
            f"{origin} is not an API key: a key is one word of printable ASCII, and this has other "
            "characters (it is not shown): is it the right one, with nothing but the key in it?"
        )
    return key


def _read_key_file(file: str) -> str:
    """Read a regular file of 64 KiB at most, without BOM; warn if others may read it. Raises UsageError."""
    try:
        with untrusted.open_regular(Path(file)) as opened:
            data, mode = opened.read(_LONGEST_FILE + 1), os.fstat(opened.fileno()).st_mode
    except OSError as error:
        raise UsageError(f"--api-key-file {file!r}: {error.strerror}: write the key to a file") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        why = f"others on this machine may read {file}: chmod 600 {file}"
        _LOG.warning("warning: %s", why)
    if len(data) > _LONGEST_FILE:
        raise UsageError(f"--api-key-file {file} is too long for a key: write only the key to it")
    return data.removeprefix(b"\xef\xbb\xbf").decode("latin-1")
