"""Prompt form: whether the prompts of a trace are token ids or words."""

from __future__ import annotations

from loadgen.base.errors import UsageError
from loadgen.plan.plan_inputs import ModelTarget
from loadgen.plan.profile import Profile
from loadgen.wire.openai import Chat, Dialect

IDS, WORDS = "ids", "words"


def form_of(profile: Profile, subject: ModelTarget, dialect: Dialect) -> str:
    """IDS where the API takes them, unless words are asked for; raises UsageError of any other form."""
    takes_ids = subject.takes_ids(dialect)
    wanted = profile.prompt_format
    if wanted == IDS and not takes_ids:
        who = "the chat API" if isinstance(dialect, Chat) else subject.engine.name
        raise UsageError(
            f"{who} takes text, not token ids: use --backend openai (/v1/completions), or leave out "
            "--prompt-format for a trace of words"
        )
    if wanted not in ("auto", IDS, WORDS):
        raise UsageError(
            f"--prompt-format {wanted}: the prompts of a trace are token ids, or words where the API takes "
            "text: leave it out"
        )
    return WORDS if wanted == WORDS or not takes_ids else IDS
