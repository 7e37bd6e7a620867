"""Self description: what an engine reports of itself at the path that has its version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from loadgen.base import untrusted
from loadgen.wire.engines import Engine


class SelfDescription(msgspec.Struct, frozen=True):
    """What a server is and holds; empty strings and 0 where it does not report it."""

    version: str = ""
    model_root: str = ""  # not yet known to be a path
    max_model_len: int = 0
    slots: int = 0  # requests that it runs at once; others wait
    without_tools: bool = False  # its chat template has no place for them


def described(engine: Engine, answer: Mapping[str, Any]) -> SelfDescription:
    """The description in an answer of the engine's `version_path`."""
    return _READERS.get(engine.name, _version)(answer)


def _version(answer: Mapping[str, Any]) -> SelfDescription:
    return SelfDescription(untrusted.text(answer.get("version")))


def _props(answer: Mapping[str, Any]) -> SelfDescription:
    """llama.cpp's /props: the context is that of one slot."""
    each, root = untrusted.mapping(answer.get("default_generation_settings")), answer.get("model_path")
    template = untrusted.mapping(answer.get("chat_template_caps"))
    return SelfDescription(
        untrusted.text(answer.get("build_info")),
        root if isinstance(root, str) else "",
        untrusted.whole(each.get("n_ctx")) or 0,
        untrusted.whole(answer.get("total_slots")) or 0,
        template.get("supports_tools") is False,
    )


_READERS: dict[str, Callable[[Mapping[str, Any]], SelfDescription]] = {"llama.cpp server": _props}
