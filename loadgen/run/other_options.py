"""Other clients' flags on our command line: accepted without effect, or refused in words that name ours."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from loadgen.base.errors import UsageError
from loadgen.base.text import quote_value
from loadgen.settings import setting, table, vllm_flags

# Kinds of load that guidellm's --profile takes, and no workload here has the name of.
_KINDS = frozenset({"synchronous", "concurrent", "constant", "poisson", "async", "sweep", "replay"})


def refuse(argv: Sequence[str]) -> None:
    """Raises UsageError of a flag of vLLM that is not supported, or would be read as another of ours."""
    for position, word in enumerate(argv):
        following = argv[position + 1] if position + 1 < len(argv) else "--"
        if word == "--profile" and following.startswith("--"):
            raise UsageError(
                "--profile takes the name of a workload here (`loadgen profiles` lists them); "
                "vLLM's bare --profile, which traces the server, is --server-trace"
            )
        if word == "--profile" and (following in _KINDS or following.startswith("kind=")):
            from loadgen.settings import other_flags  # only a wrong command line needs it

            raise UsageError(
                f"--profile {quote_value(following)} of `guidellm run`: {other_flags.GUIDELLM_PROFILE}"
            )
        if (
            word.startswith("--")
            and (reason := vllm_flags.refuse_vllm_flag(word.split("=", 1)[0])) is not None
        ):
            raise UsageError(reason)


def explained(flag: str) -> str | None:
    """Ours for another client's flag, or why there is none; None where no client has it."""
    from loadgen.settings import other_flags  # only a wrong command line needs it

    return other_flags.explain_other_flag(flag)


class _Unheeded(argparse.Action):
    """A flag of vLLM without effect here: it is noted, and refused with a value that would have one."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Note the flag; raises UsageError."""
        flag = self.option_strings[0]
        if isinstance(values, str) and (reason := vllm_flags.refuse_vllm_value(flag, values)) is not None:
            raise UsageError(reason)
        setattr(namespace, self.dest, (*getattr(namespace, self.dest, ()), flag))


def add_unheeded_flags(parser: argparse.ArgumentParser) -> None:
    """What no help lists: what has no effect (docs/from-vllm.md has it), and what was renamed."""
    for flag in vllm_flags.VLLM.no_effect:
        nargs = None if flag in vllm_flags.VALUED_FLAGS else 0
        parser.add_argument(flag, action=_Unheeded, nargs=nargs, dest="no_effect", help=argparse.SUPPRESS)
    table.add_flags(parser, table.list_flags(setting.UNLISTED))
