"""The tree keeps its shape: budgets, import arrows, docstrings, words that have no place in it."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
CODE = sorted(
    [*ROOT.glob("loadgen/**/*.py"), *ROOT.glob("servers/**/*.py"), *ROOT.glob("benchmarks/**/*.py")]
)
TESTS = sorted(ROOT.glob("tests/**/*.py"))
PACKAGE = [path for path in CODE if path.parent.name != "benchmarks"]
TEXT = [
    path
    for pattern in ("*.md", "*.toml", "docs/**/*.md", "profiles/*.toml", "benchmarks/*.c", ".ci/*")
    for path in sorted(ROOT.glob(pattern))
    if path.is_file()
]

# Imports point left: a module imports only what stands before it. Those on a line know nothing of one another
# that is not to their own left.
# fmt: off
ORDER = [
    "__init__", "errors", "places", "bounds", "plain_text", "layout", "csv_text", "sendable",
    "printing", "sections", "signals", "failure", "stop_rules", "untrusted",
    "server_log", "clock", "arrays", "files", "engines", "sse", "http1", "capture", "columns", "archive",
    "spill", "record", "journal",
    "arrival", "vocabulary", "prompts", "text_prompts", "server_text", "dialect", "generate", "counting",
    "server_settings", "profile", "plan", "plain", "decode", "job", "channel", "slot", "pool", "stalls",
    "deadlines", "outgoing", "rest", "wire", "portable", "runner", "ranks", "peaks", "goodput",
    "distribution", "health",
    "metrics", "speed", "rows", "tables", "steady", "block", "vllm_json", "environment", "secrecy", "host",
    "gguf", "checkpoint", "statements", "as_run", "reading", "nvml", "hwmon", "processes", "sensors",
    "samples", "sensing", "calibration", "exposition", "window", "cell", "fingerprint", "roofline",
    "facts", "local", "attainable", "exchange", "endpoint", "control", "answers", "observe", "live",
    "measure",
    "reconcile", "evidence",
    "load_findings", "server_findings", "client_findings", "roofline_findings", "doubt", "load_doubts",
    "server_doubts", "client_doubts", "doubts", "verdict", "result", "followup",
    "rungs", "repeats", "report",
    "launch_flags", "stop_flags", "refused_flags", "flags", "credentials", "reported", "others",
    "comparison", "audit", "page", "export",
    "selftest", "calibrate", "run", "launched", "attach", "climb", "bench", "ladder",
    "campaign", "cli", "__main__",
]
# A package is one noun whose modules stand together; what it exports to those right of it is any of them.
PACKAGES = {
    "roofline": [
        "machine", "ceiling", "machines", "architecture", "models", "scheme", "stored", "weights", "known",
        "bound", "preset", "subject",
    ],
    "others": [
        "text", "numbers", "blocks", "headings", "documents", "commands", "pages", "vllm", "sglang", "aiperf",
        "guidellm", "own", "sheets", "sources",
    ],
    "comparison": [
        "shape", "power", "resampling", "estimate", "family", "statistics", "likeness", "groups", "pairs",
        "lines",
        "comparison", "campaigns", "ceilings", "render", "export", "rankings", "fits", "verb",
    ],
    "audit": [
        "printed", "workloads", "subject", "arithmetic", "likes", "speed", "checks", "findings", "render",
        "verb",
    ],
    "page": [
        "panel", "ink", "series", "words", "charts", "account", "document", "drawing", "plots", "vector",
        "hypertext", "markdown",
        "sheet", "terminal", "forms", "verb",
    ],
    "campaign": [
        "file", "keys", "trust", "arms", "matrix", "record", "store", "estimate", "cooling", "execution",
        "preview", "verb",
    ],
}
# fmt: on

# A child process must end whatever happens in it, and say why. A sensor's driver or library raises what it
# likes, and none of it is worth a run. What is made of a measured run is made part by part, and an exception
# that nobody foresaw must cost its part alone, which names it.
CATCHES_ALL = {("runner.py", "BaseException"), ("reading.py", "Exception"), ("sections.py", "Exception")}
CATCHES_ALL |= {("execution.py", "Exception"), ("run.py", "BaseException")}
MOST_PARAMETERS = 8


def named(paths: list[Path]) -> list[object]:
    return [pytest.param(path, id=str(path.relative_to(ROOT))) for path in paths]


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def imported(path: Path) -> set[str]:
    """The full names of the modules a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("path", named(CODE + TESTS))
def test_files_and_functions_keep_their_budget(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(text.splitlines()) < 400
    for function in functions(ast.parse(text)):
        assert function.end_lineno is not None
        assert function.end_lineno - function.lineno < 60, function.name
        arguments = function.args
        count = len(arguments.posonlyargs + arguments.args + arguments.kwonlyargs)
        assert count <= MOST_PARAMETERS, function.name


@pytest.mark.parametrize("path", named(CODE))
def test_nothing_catches_everything(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.ExceptHandler):
            continue
        assert node.type is not None, f"line {node.lineno}: bare except"
        caught = {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)}
        broad = caught & {"Exception", "BaseException"}
        assert {(path.name, name) for name in broad} <= CATCHES_ALL, f"line {node.lineno}"


@pytest.mark.parametrize("path", named(PACKAGE))
def test_what_is_public_says_what_it_is(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    if path.name != "__init__.py" or tree.body:
        assert ast.get_docstring(tree), "the module"
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
            assert ast.get_docstring(node), node.name


@pytest.mark.parametrize("path", named(CODE + TESTS))
def test_every_module_has_lazy_annotations(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    if any(isinstance(node, ast.ClassDef | ast.FunctionDef) for node in tree.body):
        assert "__future__.annotations" in imported(path)


def test_every_module_of_the_client_has_its_place() -> None:
    assert {path.stem for path in ROOT.glob("loadgen/*.py")} | set(PACKAGES) == set(ORDER)
    assert len(ORDER) == len(set(ORDER))
    assert {path.parent.name for path in ROOT.glob("loadgen/*/*.py")} == set(PACKAGES)
    for package, modules in PACKAGES.items():
        found = {path.stem for path in ROOT.glob(f"loadgen/{package}/*.py")} - {"__init__"}
        assert found == set(modules), package


@pytest.mark.parametrize("path", named(sorted(ROOT.glob("loadgen/**/*.py"))))
def test_imports_point_left(path: Path) -> None:
    own = path.parent.name if path.parent.name in PACKAGES else path.stem
    for name in imported(path):
        _, _, inside = name.partition("loadgen.")
        target, _, module = inside.partition(".")
        if not name.startswith("loadgen.") or target not in ORDER:
            continue
        if target != own:
            assert ORDER.index(target) < ORDER.index(own), f"{path.stem} imports {target}"
        elif (modules := PACKAGES.get(own, [])) and module in modules:
            assert modules.index(module) < modules.index(path.stem), f"{path.stem} imports {own}.{module}"


@pytest.mark.parametrize("path", named(sorted(ROOT.glob("loadgen/**/*.py"))))
def test_only_the_command_knows_the_servers(path: Path) -> None:
    knows = any(name.split(".")[0] == "loadgen_servers" for name in imported(path))
    assert not knows or path.stem in ("launched", "attach", "cli", "selftest")


@pytest.mark.parametrize("path", named(sorted(ROOT.glob("servers/**/*.py"))))
def test_the_servers_do_not_know_the_client(path: Path) -> None:
    assert not any(name.split(".")[0] == "loadgen" for name in imported(path))


@pytest.mark.parametrize("path", named(CODE))
def test_names_are_nouns_of_the_field(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ClassDef):
            assert not re.search(r"(Manager|Handler|Factory|Helper|Utils?)$", node.name), node.name
    assert path.stem not in ("utils", "helpers", "common", "misc")


@pytest.mark.parametrize("path", named([*CODE, *TESTS, *TEXT]))
def test_no_path_of_somebodys_machine_is_in_it(path: Path) -> None:
    machine = re.compile(r"(?<![\w.}])/(" + "work|opt|root|home" + r")/\w")
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        assert not machine.search(line), f"line {number}: {line.strip()}"


@pytest.mark.parametrize(
    "name",
    [
        "metrics",
        "results",
        "profiles",
        "design",
        "validity",
        "selftest",
        "reconciliation",
        "engines",
        "servers",
        "jetson",
        "roofline",
        "reliability",
        "security",
    ],
)
def test_the_docs_are_there(name: str) -> None:
    assert (ROOT / "docs" / f"{name}.md").stat().st_size > 500


@pytest.mark.parametrize("path", named(CODE))
def test_nothing_that_comes_from_outside_is_run(path: Path) -> None:
    """No pickle, no eval or exec, no shell."""
    assert not imported(path) & {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        assert called not in ("eval", "exec", "compile", "__import__"), f"line {node.lineno}"
        of = ast.unparse(node.func)
        assert of not in ("os.system", "os.popen", "subprocess.getoutput"), f"line {node.lineno}"
        for word in node.keywords:
            said = ast.unparse(word.value)
            assert (word.arg, said) not in (("shell", "True"), ("allow_pickle", "True")), (
                f"line {node.lineno}"
            )


def test_what_is_locked_is_all_that_is_needed_by_hash_and_names_no_host() -> None:
    text = (ROOT / "requirements" / "ci.txt").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    locked: dict[str, list[str]] = {}
    for entry in re.split(r"\n(?=[a-z])", text)[1:]:
        name, _, rest = entry.partition("==")
        locked.setdefault(name, []).append(re.split(r"[\s;]", rest)[0])
        assert "--hash=sha256:" in entry, name
    for one in map(Requirement, [*project["dependencies"], *project["optional-dependencies"]["test"]]):
        assert locked[one.name], one.name
        assert all(one.specifier.contains(version) for version in locked[one.name]), one.name
    assert not re.search(r"://|--index|--find-links|--trusted", text)


def test_the_readme_names_only_flags_that_exist() -> None:
    from loadgen.flags import bench_parser

    known = {option for action in bench_parser()._actions for option in action.option_strings}
    lines = [line for line in (ROOT / "README.md").read_text("utf-8").splitlines() if "loadgen bench" in line]
    assert lines
    for line in lines:
        flags = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", line))
        assert flags <= known, line
