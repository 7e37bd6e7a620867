"""The version of what is built: that of the tag at HEAD, or of a state after it (hatch asks for it).

python scripts/tag_version.py
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_FIRST = "0.1.0"  # what is made before the first tag
_DESCRIBED = re.compile(r"v(\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?)-(\d+)-(g[0-9a-f]+)(-dirty)?")


def find_version(root: Path = _ROOT) -> str:
    """Return the version of a clone by PEP 440: "1.2.0" at v1.2.0, "1.2.1.dev3+gabc1234" three commits later.

    "0+unknown" without git or outside a clone; "+….dirty" if files differ from the commit.
    """
    if not (root / ".git").exists():
        return "0+unknown"
    described = _run_git(root, "describe", "--tags", "--long", "--dirty", "--match", "v[0-9]*")
    if not described:
        head, count = (
            _run_git(root, "rev-parse", "--short", "HEAD"),
            _run_git(root, "rev-list", "--count", "HEAD"),
        )
        return f"{_FIRST}.dev{count}+g{head}" if head else "0+unknown"
    return name_version(described)


def name_version(described: str) -> str:
    """Name the version of what `git describe --long` says, as `v1.2.0-3-gabc1234`; "0+unknown" for others."""
    found = _DESCRIBED.fullmatch(described)
    if found is None:
        return "0+unknown"
    tagged, commits, commit, dirty = found.groups()
    if commits == "0" and not dirty:
        return tagged
    following = re.sub(r"\d+$", lambda last: str(int(last[0]) + 1), tagged)
    return f"{following}.dev{commits}+{commit}{'.dirty' if dirty else ''}"


def _run_git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":
    print(find_version())
