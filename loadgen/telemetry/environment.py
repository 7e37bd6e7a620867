"""Environment: the machine and the software a run was made with; never a secret."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from loadgen import __version__
from loadgen.protocol import untrusted

_PACKAGES = ("numpy", "httpx", "httptools", "msgspec", "pydantic", "transformers")
_SETTINGS = {
    "cpu_governor": "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
    "cpu_frequency_driver": "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver",
    "power_profile": "/sys/firmware/acpi/platform_profile",
    "power_mode": "/var/lib/nvpmodel/status",  # Jetson
    "sched_autogroup": "/proc/sys/kernel/sched_autogroup_enabled",
}
HIDDEN = "***"
_GIT_S = 1.0
_LONGEST_LINE = 4096  # bytes
_ROOT = Path(__file__).resolve().parents[2]

# A name whose last word says that its value is nobody's business; `max-tokens` and `TOKENIZERS_…` are none.
_KEY = (
    r"(?:[a-z0-9]+[-_.])*"
    r"(?:api_?keys?|key|key[-_]id|token|secret|password|passwd|passphrase|credentials?|auth|authorization)"
)
# What is a secret whatever stands before it.
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
_SECRET_FLAG = re.compile(rf"--?{_KEY}", re.IGNORECASE)
_SECRET_NAME = re.compile(_KEY, re.IGNORECASE)
_HEADER = re.compile(r"\s*[\w!#$%&'*+.^`|~-]+(?=\s*[=:])")


def describe() -> dict[str, str]:
    """Facts of this machine, as words."""
    facts = {
        "loadgen": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": _platform(),
        "os": _os_name(),
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cpus": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "memory": _memory(),
    }
    facts.update((name, said) for name, path in _SETTINGS.items() if (said := _first_line(Path(path))))
    facts.update((name, version) for name in _PACKAGES if (version := _version(name)))
    return facts


def _version(package: str) -> str:
    """That of the code in use, else of what is installed; "" where it is not."""
    loaded = getattr(sys.modules.get(package), "__version__", "")
    try:
        return str(loaded or metadata.version(package))
    except metadata.PackageNotFoundError:
        return ""


def bare_variables() -> dict[str, str]:
    """What a command that we ask about this machine needs of the environment: no key, no hook's GIT_DIR."""
    needed = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH")
    return {name: os.environ[name] for name in needed if name in os.environ}


def git_state(root: Path = _ROOT) -> str:
    """The commit we run from, with `+dirty` where a tracked file differs; "" of an installed package.

    It starts a process of some milliseconds, so it is no part of `describe()`.
    """
    if not (root / ".git").exists():
        return ""
    command = ("git", "--no-optional-locks", "-C", str(root), "describe", "--always", "--dirty=+dirty")
    try:
        said = subprocess.run(
            (*command, "--exclude=*"), env=bare_variables(), capture_output=True, timeout=_GIT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return "" if said.returncode else said.stdout.decode("utf-8", "replace").strip()


def command_line(argv: Sequence[str] | None = None) -> list[str]:
    """The command as typed, with the values of headers, keys and tokens hidden."""
    words, header, hiding = [], False, False
    for word in sys.argv if argv is None else argv:
        if word.startswith("--") or (word.startswith("-") and not hiding):
            name, given, _ = word.partition("=")
            header, hiding = name == "--header", _SECRET_FLAG.fullmatch(name) is not None
            words.append(f"{name}={HIDDEN}" if given and (header or hiding) else hide(word))
        elif header:
            named = _HEADER.match(word)  # without a name all of it may be the key
            words.append(f"{named[0]}={HIDDEN}" if named else HIDDEN)
        else:
            words.append(HIDDEN if hiding else hide(word))
    return words


def is_secret(name: str) -> bool:
    """Whether a key, a header or a variable is named as secrets are: api_key, authToken; not max_tokens."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip())
    return _SECRET_NAME.fullmatch(words) is not None


def hide(text: str) -> str:
    """A text without the values that look like secrets: of keys and tokens, in URLs, behind Bearer."""
    for secret in _SECRETS:
        text = secret.sub(rf"\1{HIDDEN}", text)
    return text


def hide_credentials(text: str) -> str:
    """A text without what is a key or a password by its own form, whatever it is called."""
    for secret in _CREDENTIALS:
        text = secret.sub(rf"\1{HIDDEN}", text)
    return text


def _platform() -> str:
    """As platform.platform(), which starts a process to learn what it does not print."""
    if not hasattr(os, "uname"):
        return platform.platform()
    system = os.uname()
    name = f"{system.sysname}-{system.release}-{system.machine}"
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):  # no such name, or no such C library
        libc = ""
    return f"{name}-with-{libc.replace(' ', '')}" if libc else name


def _os_name() -> str:
    try:
        return untrusted.text(platform.freedesktop_os_release().get("PRETTY_NAME", ""))
    except (OSError, ValueError):  # no such file, or none of UTF-8
        return platform.system()


def _memory() -> str:
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # no such name, or no such system
        return ""
    return f"{total / 2**30:.1f} GiB"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return platform.processor()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    board = _first_line(Path("/proc/device-tree/model"))  # ARM: no name of the processor
    return untrusted.text(next(named, board or platform.machine()))


def _first_line(path: Path) -> str:
    """A system's file of one line, whatever its bytes; "" where there is none."""
    try:
        with path.open("rb") as file:
            line = file.read(_LONGEST_LINE).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
    return untrusted.text(line.strip().rstrip("\0"))
