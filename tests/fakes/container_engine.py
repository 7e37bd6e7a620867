"""A container engine for one process: it is named, asked for, stopped and removed as docker does."""

from __future__ import annotations

import sys
from pathlib import Path

_PROGRAM = """#!{python} -S
import os, signal, sys
here, (verb, *words) = os.path.dirname(sys.argv[0]), sys.argv[1:]
name = words[words.index("--name") + 1] if "--name" in words else words[-1]
pid_file = os.path.join(here, name)
if verb == "run":
    entry, image = words[words.index("--entrypoint") + 1], words.index("IMAGE")
    variables = [words[at + 1] for at, word in enumerate(words) if word == "-e"]
    known = dict(v.split("=", 1) if "=" in v else (v, os.environ[v]) for v in variables)
    pid = os.fork()
    if not pid:
        os.setsid()
        with open(pid_file, "w") as file:
            print(os.getpid(), file=file)
        os.execve(os.path.join(here, entry), [entry, *words[image + 1 :]], known)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.remove(pid_file)
    sys.exit(code if code >= 0 else 128 - code)
if not os.path.exists(pid_file):
    sys.exit(f"no such container: {{name}}")
pid = int(open(pid_file).read())
if verb == "inspect":
    print(pid)
else:
    os.kill(pid, signal.SIGKILL if verb == "rm" else signal.SIGTERM)
"""


def put_container_engine(path: Path) -> None:
    """Write the program there. The programs of its image, IMAGE, are beside it."""
    path.write_text(_PROGRAM.format(python=sys.executable))
    path.chmod(0o755)
