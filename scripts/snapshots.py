"""Snapshots of every output that loadgen makes of stored data: `python scripts/snapshots.py OUT [FOLDER…]`.

Two folders, written before and after a change, are compared with `diff -r`: a change that should change no
figure leaves no difference. A FOLDER (default: tests/data and docs/examples) holds run directories, journals,
campaigns, sweeps, searches, ladders and files of other clients. Everything goes through the command line and
the public API, so that the script does not depend on how the package is laid out. `--only GROUP` writes a
part.

`--store` writes tests/data/snapshots as well, with which tests/test_snapshots.py compares every output: the
digest of each, and the whole text of those in TEXTS.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import hashlib
import inspect
import io
import itertools
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
STORED = REPO / "tests" / "data" / "snapshots"
DIGESTS = "digests.txt"
# The outputs, as globs, of which the whole text is stored: a diff of these says most of what a change did.
_STORED_RUNS = "tests-data/run_directories"
TEXTS = (
    f"runs/{_STORED_RUNS}/smoke/audit.txt",
    f"runs/{_STORED_RUNS}/smoke/explain.txt",
    f"runs/{_STORED_RUNS}/smoke/markdown.txt",
    f"runs/{_STORED_RUNS}/smoke/report.txt",
    f"runs/{_STORED_RUNS}/sessions/explain.txt",
    f"runs/{_STORED_RUNS}/classes/report.txt",
    f"series/{_STORED_RUNS}/campaign/[acr]*t.txt",
    f"series/{_STORED_RUNS}/sweep/[cr]*t.txt",
    f"series/{_STORED_RUNS}/limit/report.txt",
    "compared/report.txt",
    "compared/all-text.txt",
    "files/tests-data/results/*.stdout.txt/compare.txt",
    "judged/gate-text.txt",
    "judged/*/slower.jsonl/history-text.txt",
    "judged/fidelity.txt",
    "data/docs-examples/*/text.txt",
    "profiles/list.txt",
    "help/loadgen.txt",
    "help/bench.txt",
    "live/turns.txt",
)
SERIES = ("campaign.json", "sweep.json", "limit.json", "ladder.json")
RUN = ("result.json", "journal.bin")
FORMS: dict[str, tuple[str, ...]] = {
    "report": ("report",),
    "explain": ("report", "--explain"),
    "markdown": ("report", "--markdown", "-"),
    "csv": ("report", "--csv", "-"),
    "audit": ("audit",),
    "audit-json": ("audit", "--json"),
    "compare": ("compare", "--json"),
}
LAYOUTS = ("sglang",)
COMPARED: dict[str, tuple[str, ...]] = {
    "text": (),
    "json": ("--json",),
    "markdown": ("--markdown",),
    "csv": ("--csv",),
    "rankings": ("--rankings",),
    "effects": ("--effects",),
    "fits": ("--fits",),
    "unlike": ("--allow-unlike",),
    "hardware": ("--hardware", "h20", "--margin", "5", "--headline", "mean_ttft_ms", "--allow-unlike"),
}
MACHINE = ("--hardware", "jetson-thor")
VALUES = ("x", "-1", "0", "1.5", "nan", "9" * 20, "")  # tried for each flag
KEY_VALUES = ('"x"', "-1", "0", "3", "0.5", "true", '"10%"', "[]")  # tried for each key of a profile
RUNS_NOTHING = ("bench", "--launch-command", "true {port}", "--dry-run")
CHANCE = (
    (re.compile(r"^true \d+\b", re.MULTILINE), "true PORT"),  # of RUNS_NOTHING
    (re.compile(r"(?<=--port )\d{5}"), "PORT"),
    (re.compile(r"was \d+\.\d s ago"), "was N s ago"),
    (re.compile(r"(?<= at )0x[0-9a-f]+"), "ADDRESS"),  # of a function in a signature
)
# Flags that would start, connect to or write something even under --dry-run.
LEFT_OUT = {
    "--cluster",
    "--live-totals",
    "--export-requests",
    "--help",
    "--launch-command",
    "--base-url",
    "--dry-run",
}
VERBS = (
    "bench",
    "ladder",
    "data",
    "profiles",
    "sweep",
    "report",
    "campaign",
    "limit",
    "compare",
    "audit",
    "shards",
    "merge",
    "export",
    "selftest",
    "engine",
)
LENGTHS = "--random-input-len 16 --random-output-len 4"
PLANNED = f"--num-prompts 12 {LENGTHS}"
LIVE = {
    "rate": f"{PLANNED} --request-rate 50",
    "closed": f"{PLANNED} --max-concurrency 4",
    "turns": f"{LENGTHS} --turns 2 --num-sessions 4",
    "classes": "--num-prompts 12 --class name=a,share=50%,input_len=8,output_len=4 "
    "--class name=b,share=50%,input_len=16,output_len=2",
    "stages": f"{LENGTHS} --schedule 'rate 20 for 0.5s, 40 for 0.5s'",
    "repeated": f"{PLANNED} --prefix-groups 2 --random-prefix-len 8",
}


class Snapshots:
    """Writes the outputs of commands under a folder, without paths of this machine."""

    def __init__(self, out: Path, hidden: dict[str, str]) -> None:
        self.out = out
        self.hidden = [(re.compile(re.escape(path) + r"(?!\w)"), name) for path, name in hidden.items()]

    def write(self, name: str, text: str) -> None:
        for found, kept in self.hidden:
            text = found.sub(kept, text)
        for found, kept in CHANCE:
            text = found.sub(kept, text)
        path = self.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8", "surrogateescape")

    def run(self, name: str, *argv: str) -> None:
        """Write the output and exit code of one command."""
        self.write(name, run_command(argv))

    def render(self, name: str, *argv: str) -> None:
        """Write the HTML page of a report."""
        page = Path("page.html")
        page.unlink(missing_ok=True)
        text = run_command(("report", *argv, "--html", str(page)))
        self.write(name, page.read_text("utf-8") if page.exists() else text)

    def use(self, name: str, made: Callable[[], str]) -> None:
        """Write the text that a use of the Python API returns, or its error."""
        try:
            text = made()
        except Exception as error:
            text = f"{type(error).__name__}: {error}\n"
        self.write(name, text)


def run_command(argv: Sequence[str]) -> str:
    """Return standard output, standard error and exit code of one command, run in this process."""
    from loadgen import cli

    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True, newline="") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code: object = cli.main(list(argv))
        except SystemExit as ended:
            code = ended.code
        except Exception:
            code = traceback.format_exc(limit=-1)
    written, errors = (each.buffer.getvalue().decode("utf-8", "replace") for each in (out, err))
    errors = re.sub(r"(?m)^.* · \d+ s\n", "", errors)  # of a wait that took long enough to be shown
    return written + (f"--- standard error\n{errors}" if errors else "") + f"--- exit code {code}\n"


def record_runs(snapshots: Snapshots, places: Sequence[Path]) -> None:
    """Each run alone: the report in every form, the audit, the rows of its requests, its JSON made again."""
    for place in places:
        base = f"runs/{place}"
        for form, (verb, *options) in FORMS.items():
            snapshots.run(f"{base}/{form}.txt", verb, str(place), *options)
        for layout in LAYOUTS:
            snapshots.run(f"{base}/{layout}.txt", "report", str(place), "--layout", layout)
        snapshots.run(f"{base}/on-machine.txt", "report", str(place), "--explain", *MACHINE)
        snapshots.render(f"{base}/page.html", str(place))
        for form in ("jsonl", "csv"):
            snapshots.run(f"{base}/rows.{form}", "export", str(place), f"--{form}", "--output", "-")
        snapshots.use(f"{base}/api.json", partial(write_api_json, place))
        snapshots.use(f"{base}/saved.json", partial(save_again, place))


def write_api_json(place: Path) -> str:
    """vLLM's JSON of a run, with each request's times and text."""
    import loadgen

    run = loadgen.load(place)
    return (
        format_json(run.json(detailed=True))
        + run.report(explain=True)
        + repr(run.objectives)
        + f"\n{run.verdict}\n"
    )


def save_again(place: Path) -> str:
    """The files that `Run.save` writes of a run: the JSON whole, arrays by their digests."""
    import numpy as np

    import loadgen

    folder = Path(tempfile.mkdtemp(dir="."))
    loadgen.load(place).save(folder / "saved")
    lines = []
    for path in sorted((folder / "saved").iterdir()):
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                for name in arrays.files:
                    array = arrays[name]
                    lines.append(
                        f"{path.name} {name} {array.dtype} {array.shape} {hash_bytes(array.tobytes())}"
                    )
        elif path.suffix == ".json":
            lines.append(f"{path.name}\n{format_json(json.loads(path.read_text('utf-8')))}")
        else:
            lines.append(f"{path.name} {hash_bytes(path.read_bytes())}")
    shutil.rmtree(folder)
    return "\n".join(lines) + "\n"


def record_series(snapshots: Snapshots, places: Sequence[Path]) -> None:
    """Each campaign, sweep, search and ladder: reports, comparisons, audits, tables."""
    for place in places:
        base = f"series/{place}"
        for form, (verb, *options) in FORMS.items():
            snapshots.run(f"{base}/{form}.txt", verb, str(place), *options)
        for form, flags in COMPARED.items():
            snapshots.run(f"{base}/compare-{form}.txt", "compare", str(place), *flags)
        snapshots.render(f"{base}/page.html", str(place))
        for verb in ("campaign", "sweep", "limit"):
            if (place / f"{verb}.json").exists():
                snapshots.run(f"{base}/resume.txt", verb, "--resume", str(place), "--dry-run")


def record_judged(snapshots: Snapshots, files: Sequence[Path]) -> None:
    """Gates of a campaign, histories, and workloads described, whose figures rest on one file each."""
    campaign = "tests-data/run_directories/campaign"
    for form, flags in {"text": (), "json": ("--json",)}.items():
        snapshots.run(f"judged/gate-{form}.txt", "gate", campaign, *flags)
        for path in files:
            if path.parent.name == "histories" and path.suffix == ".jsonl":
                snapshots.run(f"judged/{path}/history-{form}.txt", "history", str(path), *flags)
            elif str(path).startswith("docs-examples"):
                words = (str(path), "--seed", "1", *flags)
                snapshots.run(f"judged/{path}/describe-{form}.txt", "data", "describe", *words)
    pair = ("docs-examples/azure_2023.csv", "docs-examples/mooncake.jsonl")
    snapshots.run("judged/fidelity.txt", "data", "describe", *pair)


def record_merges(snapshots: Snapshots, places: Sequence[Path]) -> None:
    """The runs of shards joined, whole and with one of them missing."""
    plans: dict[str, list[Path]] = {}
    for place in places:
        if shard := re.fullmatch(r"(.*?)-?shard-\d+(?:-of-\d+)?", str(place)):
            plans.setdefault(shard[1], []).append(place)
    for plan, shards in plans.items():
        for name, those in (("whole", shards), ("missing", shards[1:]), ("reversed", shards[::-1])):
            merged = f"merged/{plan.replace('/', '-')}-{name}"
            snapshots.run(
                f"merges/{plan}/{name}.txt", "merge", *map(str, those), "--explain", "--output", merged
            )
            snapshots.use(f"merges/{plan}/{name}.json", partial(save_again, Path(merged)))
    if len(plans) > 1:
        mixed = [str(shards[0]) for shards in plans.values()]
        snapshots.run("merges/mixed.txt", "merge", *mixed, "--output", "merged/mixed")
    if places:
        snapshots.run("merges/not-a-shard.txt", "merge", str(places[0]), "--output", "merged/none")


def record_comparisons(snapshots: Snapshots, places: Sequence[Path]) -> None:
    """Runs compared in pairs of neighbours, and all in each form."""
    for one, other in itertools.pairwise(places):
        snapshots.run(f"compared/pairs/{one}-{other.name}.txt", "compare", str(one), str(other))
    for one, other in zip(places, places[7:], strict=False):
        snapshots.run(
            f"compared/far/{one}-{other.name}.txt",
            "compare",
            str(one),
            str(other),
            "--allow-unlike",
            "--json",
        )
    for form, flags in COMPARED.items():
        snapshots.run(f"compared/all-{form}.txt", "compare", *map(str, places), *flags)
    snapshots.run("compared/report.txt", "report", *map(str, places))
    snapshots.run("compared/report.csv", "report", *map(str, places), "--csv", "-")
    snapshots.run("compared/report.md", "report", *map(str, places), "--markdown", "-")
    snapshots.render("compared/page.html", *map(str, places))


def record_files(snapshots: Snapshots, files: Sequence[Path]) -> None:
    """Every other file as a result of another client, refusals too."""
    for path in files:
        for form, flags in {"compare": (), "compare-json": ("--json",), "rankings": ("--rankings",)}.items():
            snapshots.run(f"files/{path}/{form}.txt", "compare", str(path), *flags)
        snapshots.run(f"files/{path}/audit.txt", "audit", str(path), "--explain")
        snapshots.run(f"files/{path}/audit.json", "audit", str(path), "--json")
        snapshots.run(f"files/{path}/report.md", "report", str(path), "--markdown", "-")


def record_data(snapshots: Snapshots, files: Sequence[Path]) -> None:
    """Every other file as data to send: kind, lengths, arrivals, the plan's digest."""
    for path in files:
        snapshots.run(f"data/{path}/text.txt", "data", str(path), "--seed", "1")
        snapshots.run(f"data/{path}/json.txt", "data", str(path), "--seed", "1", "--json")
        snapshots.run(
            f"data/{path}/short.txt",
            "data",
            str(path),
            "--seed",
            "2",
            "--num-prompts",
            "3",
            "--speed-up",
            "2",
        )


def record_profiles(snapshots: Snapshots, _: Sequence[Path]) -> None:
    """Every shipped profile as TOML and as a plan; each key of a profile with right and wrong values."""
    import loadgen

    listed = run_command(("profiles",))
    snapshots.write("profiles/list.txt", listed)
    for name in re.findall(r"^(\S+) ", listed, re.MULTILINE):
        if name == "---":
            continue
        snapshots.run(f"profiles/{name}/toml.txt", "profiles", name)
        snapshots.run(f"profiles/{name}/plan.txt", "data", "--profile", name, "--seed", "1")
        snapshots.run(
            f"profiles/{name}/chat.txt", "data", "--profile", name, "--seed", "1", "--backend", "openai-chat"
        )
    for key in sorted(loadgen.Profile.model_fields):
        lines = []
        for value in KEY_VALUES:
            Path("tried.toml").write_text(f'name = "tried"\nnum_prompts = 3\n{key} = {value}\n', "utf-8")
            if key == "num_prompts":
                Path("tried.toml").write_text(f'name = "tried"\n{key} = {value}\n', "utf-8")
            lines.append(
                f"{key} = {value}\n{run_command(('data', '--profile', 'tried.toml', '--seed', '1'))}"
            )
        snapshots.write(f"profiles/keys/{key}.txt", "".join(lines))
    for name in ("demo", "example", "qwen3-h20-ladder", "qwen3-thor"):
        snapshots.run(f"profiles/campaigns/{name}.txt", "campaign", name, "--dry-run")


def record_help(snapshots: Snapshots, _: Sequence[Path]) -> None:
    """The help of every verb, and a list of all flags in it."""
    snapshots.run("help/loadgen.txt", "--help")
    for verb in VERBS:
        text = run_command((verb, "--help"))
        snapshots.write(f"help/{verb}.txt", text)
        flags = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text + run_command((verb, "--help-all"))))
        snapshots.write(f"help/{verb}-flags.txt", "\n".join(sorted(flags - {"--help-all"})) + "\n")
    snapshots.run("help/presets.txt", "engine", "--list-presets")


def record_flags(snapshots: Snapshots, files: Sequence[Path]) -> None:
    """Give the command line each flag with each value, ours and other clients'; nothing runs."""
    text = run_command(("bench", "--help")) + run_command(("bench", "--help-all"))
    ours = set(re.findall(r"^ +(--[a-z][\w-]*)", text, re.MULTILINE)) - LEFT_OUT
    for flag in sorted(ours):
        lines = [f"{flag}\n{run_command((*RUNS_NOTHING, flag))}"]
        lines += [f"{flag} {value!r}\n{run_command((*RUNS_NOTHING, flag, value))}" for value in VALUES]
        snapshots.write(f"flags/ours/{flag[2:]}.txt", "".join(lines))
    workload = (
        set(re.findall(r"^ +(--[a-z][\w-]*)", run_command(("data", "--help")), re.MULTILINE)) - LEFT_OUT
    )
    for flag in sorted(workload):
        tried = [("data", "--seed", "1", "--num-prompts", "3", flag, value) for value in VALUES]
        lines = [f"{flag} {argv[-1]!r}\n{run_command(argv)}" for argv in tried]
        snapshots.write(f"flags/data/{flag[2:]}.txt", "".join(lines))
    lists = [path for path in files if path.parent.name == "flags" and path.suffix == ".txt"]
    for path in lists:
        lines = []
        for flag in sorted(set(re.findall(r"--[a-z][\w-]*", path.read_text("utf-8")))):
            if flag not in LEFT_OUT | {"--cluster"}:
                lines.append(f"{flag} 1\n{run_command((*RUNS_NOTHING, flag, '1'))}")
        snapshots.write(f"flags/{path.stem}.txt", "\n".join(lines))
    for verb in set(VERBS) - {"bench", "ladder", "selftest", "engine"}:  # these would measure something
        if verb != "data":  # which would draw a seed
            snapshots.run(f"flags/bare/{verb}.txt", verb)
        snapshots.run(f"flags/unknown/{verb}.txt", verb, "--no-such-flag")


def record_api(snapshots: Snapshots, _: Sequence[Path]) -> None:
    """The public names with their signatures, docstrings and attributes."""
    import loadgen

    for name in sorted(loadgen.__all__):
        value: Any = getattr(loadgen, name)
        lines = [inspect.getdoc(value) or ""]
        with contextlib.suppress(ValueError):  # exceptions that do not define __init__
            lines.insert(0, str(inspect.signature(value)))
        if inspect.isclass(value):
            members = sorted(set(dir(value)) - set(dir(object)))
            lines += [member for member in members if not member.startswith(("_", "model_"))]
            lines += [f"{key}: {kind}" for key, kind in sorted(inspect.get_annotations(value).items())]
        snapshots.write(f"api/{name}.txt", "\n".join(lines) + "\n")


def record_live(snapshots: Snapshots, _: Sequence[Path]) -> None:
    """Short runs against the embedded engine: the keys of their results, and what does not depend on time."""
    for name, flags in LIVE.items():
        folder = Path(tempfile.mkdtemp(dir="."))
        common = (
            "--quiet",
            "--preset",
            "instant",
            "--seed",
            "3",
            "--save-requests",
            "--run-dir",
            str(folder),
        )
        text = run_command(("bench", *common, *shlex.split(flags)))
        code = text.rsplit("--- ", 1)[1]
        found = [json.loads(path.read_text("utf-8")) for path in folder.glob("*/result.json")]
        rows = [
            json.loads(path.read_text("utf-8").splitlines()[0]) for path in folder.glob("*/requests.jsonl")
        ]
        snapshots.write(
            f"live/{name}.txt",
            code + "".join(sorted(list_keys(found[0]))) + f"{[*rows[0]]}\n" if found else text,
        )
        shutil.rmtree(folder)


def list_keys(value: Any, path: str = "") -> Iterator[str]:
    """A line for each key of a live result, with its value where that is decided before the run."""
    known = (
        "profile",
        "plan_digest",
        "seed",
        "definitions_version",
        "format",
        "bodies_digest",
        "session_turns",
    )
    if isinstance(value, dict) and not path.endswith(
        ("verdict", "environment", "window", "calibration", "sensed", "client", "steady_state")
    ):
        for key, inner in value.items():
            yield from list_keys(inner, f"{path}.{key}")
    elif any(f".{key}" in path for key in known) or path == ".completed":
        yield f"{path} = {value}\n"
    else:
        yield f"{path}\n"


GROUPS: dict[str, tuple[str, Callable[[Snapshots, Sequence[Path]], None]]] = {
    "runs": ("run", record_runs),
    "series": ("series", record_series),
    "judged": ("file", record_judged),
    "merges": ("run", record_merges),
    "compared": ("run", record_comparisons),
    "files": ("file", record_files),
    "data": ("file", record_data),
    "flags": ("file", record_flags),
    "profiles": ("file", record_profiles),
    "help": ("file", record_help),
    "api": ("file", record_api),
    "live": ("file", record_live),
}


def leave_out(folder: str, names: list[str]) -> set[str]:
    """What of a folder is not copied: what this script stored, and what Python leaves."""
    return {name for name in names if name == "__pycache__" or Path(folder, name) == STORED}


def find_places(folders: Iterable[Path]) -> dict[str, list[Path]]:
    """Find runs, series and other files in folders; what is inside a run or a series belongs to it alone."""
    found: dict[str, list[Path]] = {"run": [], "series": [], "file": []}
    for folder in folders:
        for at, inner, names in os.walk(folder):
            inner.sort()
            kind = "series" if set(SERIES) & set(names) else "run" if set(RUN) & set(names) else ""
            if kind:
                found[kind].append(Path(at))
                inner.clear()
            elif "play.py" not in names:
                found["file"] += [
                    Path(at) / name for name in sorted(names) if not name.endswith((".pem", ".lock", ".py"))
                ]
    return {kind: sorted(those) for kind, those in found.items()}


def round_floats(text: str) -> str:
    """Round what has over 12 digits to 12: the last ones differ from one processor to another."""
    return re.sub(r"\d+\.\d{7,}(e[+-]\d+)?", lambda number: f"{float(number[0]):.12g}", text)


def read_outputs(out: Path) -> dict[str, str]:
    """Read every output in a folder by its name, as it is compared."""
    texts = {str(path.relative_to(out)): path for path in sorted(out.rglob("*")) if path.is_file()}
    return {name: round_floats(path.read_text("utf-8", "surrogateescape")) for name, path in texts.items()}


def store_outputs(out: Path, stored: Path = STORED) -> None:
    """Replace the stored digests and texts by those of the outputs in a folder."""
    shutil.rmtree(stored, ignore_errors=True)
    stored.mkdir(parents=True)
    outputs = read_outputs(out)
    lines = [f"{hash_text(text)} {name}\n" for name, text in outputs.items()]
    (stored / DIGESTS).write_text("".join(lines), "utf-8", "surrogateescape")
    for name, text in outputs.items():
        if any(fnmatch(name, pattern) for pattern in TEXTS):
            path = stored / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8", "surrogateescape")


def list_changes(out: Path, stored: Path = STORED) -> Iterator[str]:
    """Yield each output of a folder that is not as stored, with a diff where its text is."""
    lines = (stored / DIGESTS).read_text("utf-8", "surrogateescape").splitlines()
    digests = {name: digest for digest, _, name in (line.partition(" ") for line in lines)}
    outputs = read_outputs(out)
    for name in sorted(digests.keys() | outputs.keys()):
        if name not in outputs:
            yield f"{name} is no longer written"
        elif name not in digests:
            yield f"{name} is new"
        elif hash_text(outputs[name]) != digests[name]:
            yield f"{name} has changed{_draw_change(stored / name, outputs[name])}"


def _draw_change(before: Path, after: str) -> str:
    if not before.exists():
        return ""
    was = before.read_text("utf-8", "surrogateescape").splitlines()
    return "\n".join(["", *difflib.unified_diff(was, after.splitlines(), "stored", "now", lineterm="", n=1)])


def hide_paths(scratch: Path, others: Sequence[str]) -> dict[str, str]:
    """Return what is written in place of paths of this machine."""
    import loadgen

    repo = str(Path(loadgen.__file__).resolve().parent.parent)
    return {str(scratch.resolve()): "DIR", repo: "REPO"} | dict.fromkeys(others, "REPO")


def format_json(value: Any) -> str:
    """JSON with a line a value, floats with every digit."""
    return json.dumps(value, indent=1, ensure_ascii=False, default=repr) + "\n"


def hash_bytes(data: bytes) -> str:
    """The first 16 hex digits of SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]


def hash_text(text: str) -> str:
    """The first 8 hex digits of SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]


def main() -> int:
    """Write the snapshots; 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "folders", type=Path, nargs="*", default=[REPO / "tests/data", REPO / "docs/examples"]
    )
    parser.add_argument("--only", action="append", choices=list(GROUPS))
    parser.add_argument("--hide", action="append", default=[], help="another path that is written as REPO")
    parser.add_argument("--store", action="store_true", help=f"write {STORED.relative_to(REPO)} again too")
    options = parser.parse_args()
    if options.store and (options.only or options.folders != parser.get_default("folders")):
        parser.error("--store is of all groups and the default folders: leave out --only and FOLDER")
    out = options.out.resolve()
    folders = [folder.resolve() for folder in options.folders]
    with tempfile.TemporaryDirectory(prefix="snapshots-") as scratch:
        copies = []
        for folder in folders:
            copies.append(Path("-".join(folder.parts[-2:])))
            shutil.copytree(folder, Path(scratch) / copies[-1], ignore=leave_out)
        os.chdir(scratch)
        quiet = {
            "PATH": "",  # no engine is found, whatever is installed
            "HOME": scratch,
            "XDG_CACHE_HOME": scratch,
            "TZ": "UTC",
            "LANG": "C.UTF-8",
        }
        os.environ.clear()
        os.environ.update(quiet | {"COLUMNS": "80"})
        time.tzset()
        found, python = find_places(copies), sys.executable
        import loadgen  # no sooner than the environment is what it stays

        loadgen.__version__ = "VERSION"  # every commit has its own
        snapshots = Snapshots(out, hide_paths(Path(scratch), options.hide))
        for group in options.only or GROUPS:
            kind, write = GROUPS[group]
            shutil.rmtree(out / group, ignore_errors=True)
            sys.executable = python if group == "live" else f"{scratch}/python"  # next to which no engine is
            began = time.process_time()
            write(snapshots, found[kind])
            print(
                f"{group}: {len(found[kind])} places, {time.process_time() - began:.1f} s of CPU", flush=True
            )
    if options.store:
        store_outputs(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
