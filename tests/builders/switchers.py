"""The flags of other clients, with what each is here: vLLM's of the parser, others' of their page."""

from __future__ import annotations

import re
from pathlib import Path

from loadgen.settings import vllm_flags

_PAGE = Path(__file__).parents[2] / "docs" / "from-others.md"
_ROW = re.compile(r"^\* (`-[\w-]+`(?:, `-[\w-]+`)*): (?:(same|differs|refused)\b(?:: )?)?(.*)$", re.MULTILINE)


def _read_flags(client: str) -> list[tuple[str, str, str]]:
    section = _PAGE.read_text("utf-8").partition(f"\n## {client}\n")[2].partition("\n## ")[0]
    return [
        (flag, what or "another name", words)
        for flags, what, words in _ROW.findall(section)
        for flag in flags.replace("`", "").split(", ")
    ]


# By client: (flag, what it is here, remark) of each flag.
FLAGS_OF = {
    "vllm": vllm_flags.list_flags(),
    "sglang": _read_flags("SGLang"),
    "guidellm": _read_flags("guidellm"),
    "aiperf": _read_flags("aiperf"),
}
