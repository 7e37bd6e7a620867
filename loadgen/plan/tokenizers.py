"""Tokenizers: loaded by transformers, and only where text must have a known number of tokens."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol, cast

from loadgen.base.errors import UsageError
from loadgen.base.text import describe_install
from loadgen.plan.model_files import find_tokenizer
from loadgen.plan.request_sources import ModelTarget

_MAX_ROUNDS = 10  # of fitting a text


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that is used; `vocab_size` does not count added tokens."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def all_special_ids(self) -> list[int]: ...
    def num_special_tokens_to_add(self) -> int: ...
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def decode(self, token_ids: Sequence[int]) -> str: ...


class FullTokenizer(Tokenizer, Protocol):
    """The part that texts of a file and traces need too."""

    chat_template: Any  # of Jinja, or several by name; None without one

    def __call__(
        self, texts: list[str], *, add_special_tokens: bool = True
    ) -> Mapping[str, list[list[int]]]: ...
    def get_vocab(self) -> dict[str, int]: ...
    def apply_chat_template(
        self, messages: list[dict[str, str]], *, add_generation_prompt: bool, tokenize: bool, **more: Any
    ) -> str: ...


def load_tokenizer(name: str | None, prompt_format: str) -> FullTokenizer:
    """Load a tokenizer from a directory or by a hub's name, maybe over the network; raises UsageError.

    Below errors, transformers logs nothing from then on.
    """
    if name is None:
        raise UsageError(
            f"--prompt-format {prompt_format} needs --tokenizer: "
            "the directory or the name of the model's tokenizer"
        )
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # as it is imported, it announces that PyTorch is missing
    try:
        import transformers
    except ImportError:
        raise UsageError(
            f"texts ({prompt_format}) need transformers: {describe_install('tokenizer')}"
        ) from None
    finally:
        logging.disable(before)
    transformers.logging.set_verbosity_error()  # else it warns of prompts beyond model_max_length
    here = os.path.exists(name)
    if not here and name.startswith(("/", ".", "~")):
        raise UsageError(f"--tokenizer {name}: there is no such directory")
    with ExitStack() as errors:
        errors.push(partial(_refuse, name))
        loaded = transformers.AutoTokenizer.from_pretrained(name, local_files_only=here)  # nosec B615 # as asked
        return cast(FullTokenizer, loaded)


def find_optional_tokenizer(subject: ModelTarget) -> str | None:
    """Find the named tokenizer, else the model's own if it and transformers are here; else None."""
    if subject.tokenizer is not None:
        return subject.tokenizer
    found = find_tokenizer(subject.model_root, subject.model)
    return None if found is None or importlib.util.find_spec("transformers") is None else str(found)


def find_needed_tokenizer(subject: ModelTarget, what: str, instead: str = "") -> str:
    """Find the named tokenizer, else the model's own; raises UsageError that `what` needs one."""
    found = subject.tokenizer or find_tokenizer(subject.model_root, subject.model)
    if found is None:
        raise UsageError(
            f"{what}, which needs a tokenizer, and {subject.no_tokenizer}: pass --tokenizer "
            "with a directory or a name of the Hugging Face Hub (the model's own, or one like it: usage then "
            f"has the server's count){instead}"
        )
    return str(found)


def fit_text(
    tokenizer: Tokenizer, ids: list[int], length: int, draw_ids: Callable[[int], list[int]]
) -> tuple[str, list[int]]:
    """Find a text that encodes to `length` tokens, starting from that of `ids`; return it and its ids.

    What is too long is cut, what is too short gets random ids (`draw_ids(n)`), and the result is decoded
    again; after ten rounds the text may still have another length.
    """
    for rounds_left in range(_MAX_ROUNDS, -1, -1):
        text = tokenizer.decode(ids)
        ids = tokenizer.encode(text, add_special_tokens=False)
        if len(ids) == length or rounds_left == 0:
            break
        if len(ids) < length:
            ids = ids + draw_ids(length - len(ids))
        ids = ids[:length]
    return text, ids


def _refuse(name: str, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
    """Raise UsageError for what loading a tokenizer's files may raise; let other exceptions pass."""
    # The Rust part raises Exception itself, no subclass, over files newer than it knows: hence the
    # comparison by type, which a handler's clause cannot make.
    expected = (OSError, ValueError, LookupError, TypeError, ImportError)
    if kind is Exception or isinstance(error, expected):
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(f"--tokenizer {name}: transformers cannot load it ({why})") from error
