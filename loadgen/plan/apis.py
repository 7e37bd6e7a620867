"""APIs: which one a profile's requests are sent in, at which path, and the fields that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from loadgen.base import untrusted
from loadgen.base.errors import UsageError
from loadgen.engines.engine import Engine
from loadgen.plan.plan_inputs import ModelTarget
from loadgen.plan.profile import Profile
from loadgen.wire.openai import Chat, Completions, Dialect
from loadgen.wire.sglang_generate import Generate

# Each API's path, by which an endpoint of one's own is known too: the longer of two comes first.
_APIS: dict[str, Callable[[], Dialect]] = {
    "/chat/completions": Chat,
    "/completions": Completions,
    "/generate": Generate,
}
_BACKENDS = {"openai-chat": "/chat/completions", "sglang": "/generate"}


def choose_dialect(profile: Profile, subject: ModelTarget) -> tuple[Dialect, str]:
    """Return the API of --endpoint and --backend, and its path with query; raises UsageError.

    Its length field is as the engine spells it.
    """
    wanted = _BACKENDS.get(profile.backend)
    own = _APIS[wanted or "/completions"]().path
    path = subject.endpoint or (subject.prefix + own.removeprefix("/v1") if own.startswith("/v1") else own)
    path = path if path.startswith("/") else f"/{path}"
    api = next((ending for ending in _APIS if path.partition("?")[0].endswith(ending)), None)
    if api is None:
        raise UsageError(f"--endpoint {path}: must end in one of {', '.join(_APIS)}")
    if wanted not in (None, api):
        raise UsageError(
            f"--backend {profile.backend} needs an endpoint ending in {wanted}, not {path}: leave out "
            "--endpoint, or pass --backend openai for the API of the endpoint"
        )
    if api == "/chat/completions" and subject.engine.max_tokens_field:
        return Chat(limit_field=subject.engine.max_tokens_field), path + subject.query
    return _APIS[api](), path + subject.query


def make_shared_fields(
    profile: Profile, engine: Engine, dialect: Dialect
) -> tuple[dict[str, Any], list[str]]:
    """Make the fields that all requests share, and notes on fields that cannot be sent; raises UsageError."""
    sampling, more, notes = profile.sampling, dict[str, Any](), []
    if profile.ignore_eos and engine.takes_ignore_eos:
        sampling["ignore_eos"] = True
    elif profile.ignore_eos and engine.forces_length:
        more["generation_config"] = engine.forces_length
        notes.append(
            f"ignore_eos is not sent: {engine.name} refuses it; "
            "its generation_config without an end of sequence does the same"
        )
    elif profile.ignore_eos:
        notes.append(f"ignore_eos is not sent: {engine.name} refuses it, so answers may be shorter")
    if profile.chat_template_kwargs and isinstance(dialect, Chat):
        more["chat_template_kwargs"] = profile.chat_template_kwargs
    elif profile.chat_template_kwargs and (profile.dataset_name != "custom" or profile.skip_chat_template):
        # The prompts of `custom` are rendered here.
        raise UsageError("--chat-template-kwargs goes with the chat API: use --backend openai-chat")
    fields = dialect.make_fields(sampling, profile.stream, profile.continuous_usage)
    return merge_fields({**fields, **more}, profile.extra_body), notes


def merge_fields(fields: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay the fields `over` over others; tables under the same name are merged, one level deep."""
    tables = {
        name: {**_read_table(fields[name]), **table}
        for name, table in over.items()
        if isinstance(table, dict) and name in fields
    }
    return {**fields, **over, **tables}


def _read_table(value: Any) -> Mapping[str, Any]:
    """Decode a table, also one that is still JSON, its values as bytes; {} for anything else."""
    if isinstance(value, msgspec.Raw):
        return msgspec.json.decode(value, type=dict[str, msgspec.Raw]) if bytes(value)[:1] == b"{" else {}
    return untrusted.read_mapping(value)
