"""Completion: `loadgen completion SHELL` prints a script that completes verbs, flags and profiles."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress

from loadgen.base.errors import UsageError
from loadgen.base.parsing import suggest_name
from loadgen.base.printing import print_text
from loadgen.base.text import quote_value
from loadgen.plan.profile import list_shipped

_USAGE = """\
loadgen completion bash|zsh|fish: print a script that completes commands, flags
and profiles in that shell

  eval "$(loadgen completion bash)"      in ~/.bashrc; of zsh, in ~/.zshrc
  loadgen completion fish > ~/.config/fish/completions/loadgen.fish"""
Command = Callable[[Sequence[str]], int]  # `loadgen`, of its words
_FLAG = re.compile(r"^  (?:-\w, )?(--[a-z][\w-]*)", re.MULTILINE)  # where a help begins the text of a flag

_BASH = """\
_loadgen() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} words=
    if ((COMP_CWORD == 1)); then
        words="{verbs}"
    elif [[ ${{COMP_WORDS[COMP_CWORD - 1]}} == --profile ]]; then
        words="{profiles}"
    elif [[ $word == -* ]]; then
        case ${{COMP_WORDS[1]}} in
{cases}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _loadgen loadgen"""


def main(argv: Sequence[str], verbs: Mapping[str, str], command: Command) -> int:
    """Run `loadgen completion SHELL`; returns the exit code, raises UsageError for another shell.

    `verbs` are those of the command, each with the question that it answers.
    """
    shell = argv[0] if len(argv) == 1 else "--help"
    if shell in ("-h", "--help"):
        print_text(_USAGE, sys.stdout)
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    if shell not in _SHELLS:
        known = ", ".join(_SHELLS)
        raise UsageError(f"no completion for {quote_value(shell)}{suggest_name(shell, _SHELLS)}: {known}")
    flags = {name: list_flags(name, command) for name in verbs}
    if shell == "fish":
        written = _write_fish(verbs, flags)
    else:
        cases = "\n".join(f'            {name}) words="{" ".join(each)}" ;;' for name, each in flags.items())
        written = _BASH.format(verbs=" ".join(verbs), profiles=" ".join(list_shipped()), cases=cases)
    loading = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    print_text(loading + written, sys.stdout)
    return 0


def list_flags(verb: str, command: Command) -> list[str]:
    """List the flags that the whole help of a verb shows, in its order."""
    text = _read_help(command, [verb, "--help"])
    if "--help-all" in text:
        text = _read_help(command, [verb, "--help-all"])
    return list(dict.fromkeys(_FLAG.findall(text)))


def _read_help(command: Command, words: Sequence[str]) -> str:
    text = io.StringIO()
    with redirect_stdout(text), suppress(SystemExit):  # by which argparse ends after a help
        command(words)
    return text.getvalue()


def _write_fish(verbs: Mapping[str, str], flags: Mapping[str, Sequence[str]]) -> str:
    """Write fish's script: the verbs, then each one's flags, and the shipped profiles."""
    lines = []
    for name, question in verbs.items():
        quoted = question.replace("\\", "\\\\").replace("'", "\\'")
        lines.append(f"complete -c loadgen -n '__fish_is_nth_token 1' -f -a {name} -d '{quoted}'")
    for name, each in flags.items():
        begun = f"complete -c loadgen -n '__fish_seen_subcommand_from {name}'"
        lines += [f"{begun} -l {flag.removeprefix('--')}" for flag in each if flag != "--profile"]
        if "--profile" in each:
            lines.append(f"{begun} -l profile -x -a '{' '.join(list_shipped())}'")
    return "\n".join(lines)


_SHELLS = ("bash", "zsh", "fish")
