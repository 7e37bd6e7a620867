"""Prompt tokens: how long a server finds the prompts of a file, by a tokenizer that the user named."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from loadgen.base.arrays import Int64
from loadgen.plan.plan_inputs import PlanInputs
from loadgen.wire.openai import Chat

_BATCH_PROMPTS = 1024  # counted at once, or fewer: up to this many letters
_BATCH_LETTERS = 4 << 20
_UNCOUNTED = "the prompts are not counted before the run: {}"
_NO_TRANSFORMERS = "--tokenizer needs transformers for it, .venv/bin/pip install '.[tokenizer]' in the clone"


class PromptTokens:
    """Counts the tokens of prompts into `lens`, int64[rows], a batch of texts at a time.

    Counted are the tokens that a server adds too: specials, or the chat template of a message. Nothing is
    counted without a tokenizer, and where it cannot be as the server does; `why_not` says so.
    """

    def __init__(self, inputs: PlanInputs, lens: Int64) -> None:
        self._lens = lens
        self._rows: list[int] = []
        self._texts: list[str] = []
        self._letters = 0
        self.why_not = ""
        name = inputs.subject.tokenizer
        self._count = None if name is None else self._counter(name, inputs)

    @property
    def notes(self) -> tuple[str, ...]:
        """A line on why prompts are not counted, where a tokenizer was given for it."""
        return (_UNCOUNTED.format(self.why_not),) if self.why_not else ()

    def add(self, row: int, text: str) -> None:
        """Have a row's prompt counted, at the latest by `finish`; raises UsageError."""
        if self._count is None:
            return
        self._rows.append(row)
        self._texts.append(text)
        self._letters += len(text)
        if len(self._rows) == _BATCH_PROMPTS or self._letters >= _BATCH_LETTERS:
            self.finish()

    def finish(self) -> None:
        """Count what was added since the last batch; raises UsageError of a template that fails."""
        if self._count is not None and self._rows:
            self._lens[self._rows] = self._count(self._texts)
            self._rows, self._texts, self._letters = [], [], 0

    def _counter(self, name: str, inputs: PlanInputs) -> Callable[[list[str]], list[int]] | None:
        """What counts texts as the server does, None where nothing can; raises UsageError."""
        profile = inputs.profile
        if importlib.util.find_spec("transformers") is None:
            self.why_not = _NO_TRANSFORMERS
            return None
        chat = isinstance(inputs.dialect, Chat)
        if chat and profile.skip_chat_template:
            self.why_not = "--skip-chat-template, and the server applies its own"
            return None
        from loadgen.plan.prompts import tokenizers

        loaded = tokenizers.load_tokenizer(name, "auto")
        if not chat:
            return lambda texts: tokenizers.counted(loaded, texts)
        if not loaded.chat_template:
            self.why_not = f"the tokenizer {name} has no chat template"
            return None
        more = profile.chat_template_kwargs
        return lambda texts: tokenizers.counted_messages(loaded, name, texts, more)
