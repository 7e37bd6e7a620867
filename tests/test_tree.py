"""The tree keeps its shape: budgets, import arrows, docstrings, words that have no place in it."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
CODE = sorted(
    [*ROOT.glob("loadgen/**/*.py"), *ROOT.glob("servers/**/*.py"), *ROOT.glob("benchmarks/**/*.py")]
)
TESTS = sorted(ROOT.glob("tests/**/*.py"))
PACKAGE = [path for path in CODE if not path.is_relative_to(ROOT / "benchmarks")]
TEXT = [
    path
    for pattern in ("*.md", "*.toml", "docs/**/*.md", "profiles/*.toml", "benchmarks/**/*.c", ".ci/*")
    for path in sorted(ROOT.glob(pattern))
    if path.is_file()
]

# Imports point left: what is in a folder imports from its own and those before it. Files next to the folders
# are of two kinds: what every folder uses, and the command and the package, which use every folder.
FOLDERS = [
    "base", "wire", "plan", "transport", "figures", "host", "roofline", "server", "verdict", "report", "run",
    "fleet", "study",
]  # fmt: skip
INSIDE = {"study": ["run_summary", "importers", "consistency", "compare", "audit", "api", "pages", "series"]}
FIRST, LAST = set[str](), {"cli", "__main__", "__init__"}
SEAMS = {
    ("run.bench", "fleet.cluster_conflicts"),
    ("run.bench", "fleet.cluster_session"),
    ("run.keywords", "fleet.cluster_flags"),
    ("run.options", "fleet.cluster_flags"),
    ("run.shards.flags", "fleet.cluster_flags"),
}  # imports against the order, to be removed: no line is added here
MOST_FILES = 8  # beside the folders

# A child process must end whatever happens in it, and say why. A sensor's driver or library raises what it
# likes, and none of it is worth a run. What is made of a measured run is made part by part, and an exception
# that nobody foresaw must cost its part alone, which names it.
CATCHES_ALL = {
    ("capture_process.py", "BaseException"),
    ("worker_process.py", "BaseException"),
    ("sensor.py", "Exception"),
    ("sections.py", "Exception"),
}
CATCHES_ALL |= {(name, "Exception") for name in ("execution.py", "measuring.py")}
CATCHES_ALL |= {("session.py", "BaseException")}
MOST_PARAMETERS = 8


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def named(paths: list[Path]) -> list[object]:
    return [pytest.param(path, id=str(path.relative_to(ROOT))) for path in paths]


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@cache
def imported(path: Path) -> set[str]:
    """The full names of the modules a file imports, inside functions too."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("path", named(CODE + TESTS))
def test_files_and_functions_keep_their_budget(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(text.splitlines()) < 600
    for function in functions(ast.parse(text)):
        assert function.end_lineno is not None
        assert function.end_lineno - function.lineno < 60, function.name
        arguments = function.args
        count = len(arguments.posonlyargs + arguments.args + arguments.kwonlyargs)
        assert count <= MOST_PARAMETERS, function.name


@pytest.mark.parametrize("path", named(CODE))
def test_nothing_catches_everything(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        if not isinstance(node, ast.ExceptHandler):
            continue
        assert node.type is not None, f"line {node.lineno}: bare except"
        caught = {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)}
        broad = caught & {"Exception", "BaseException"}
        assert {(path.name, name) for name in broad} <= CATCHES_ALL, f"line {node.lineno}"


@pytest.mark.parametrize("path", named(PACKAGE))
def test_what_is_public_says_what_it_is(path: Path) -> None:
    tree = parsed(path)
    if path.name != "__init__.py" or tree.body:
        assert ast.get_docstring(tree), "the module"
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
            assert ast.get_docstring(node), node.name


@pytest.mark.parametrize("path", named(CODE + TESTS))
def test_every_module_has_lazy_annotations(path: Path) -> None:
    tree = parsed(path)
    if any(isinstance(node, ast.ClassDef | ast.FunctionDef) for node in tree.body):
        assert "__future__.annotations" in imported(path)


def place(module: str) -> tuple[int, int]:
    """Where a module of the client stands: the rank of its folder, and of its part of that folder."""
    folder, _, rest = module.partition(".")
    if folder in FOLDERS:
        parts = INSIDE.get(folder, [])
        part = rest.partition(".")[0]
        return FOLDERS.index(folder), parts.index(part) if part in parts else -1
    return (-1 if folder in FIRST else len(FOLDERS)), 0


def client_imports() -> dict[str, set[str]]:
    """Every module of the client, dotted below `loadgen`, and those of its own that it imports."""
    paths = {
        ".".join(path.relative_to(ROOT / "loadgen").with_suffix("").parts): path
        for path in ROOT.glob("loadgen/**/*.py")
    }
    return {
        module: {
            name.removeprefix("loadgen.")
            for name in imported(path)
            if name.removeprefix("loadgen.") in paths and name != "loadgen"
        }
        for module, path in paths.items()
    }


def test_the_folders_are_the_architecture() -> None:
    beside = [path for path in ROOT.glob("loadgen/*") if path.is_file() and path.suffix != ".pyc"]
    assert len(beside) <= MOST_FILES
    assert {path.stem for path in beside if path.suffix == ".py"} == FIRST | LAST
    assert {path.parent.name for path in ROOT.glob("loadgen/*/__init__.py")} == set(FOLDERS)
    for folder, parts in INSIDE.items():
        found = {path.stem for path in ROOT.glob(f"loadgen/{folder}/*") if path.stem != "__pycache__"}
        assert found - {"__init__"} == set(parts)


def test_imports_point_left() -> None:
    wrong = [
        f"{module} imports {target}"
        for module, targets in client_imports().items()
        for target in targets
        if module != "__init__" and place(target) > place(module) and (module, target) not in SEAMS
    ]
    assert wrong == []


def test_no_import_goes_round_in_a_circle() -> None:
    graph = {
        module: targets - {module} for module, targets in client_imports().items() if module != "__init__"
    }
    for targets in graph.values():
        targets.discard("__init__")
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as cycle:
        pytest.fail(" imports ".join(cycle.args[1]))


@pytest.mark.parametrize("path", named(sorted(ROOT.glob("loadgen/**/*.py"))))
def test_only_the_command_knows_the_servers(path: Path) -> None:
    knows = any(name.split(".")[0] == "loadgen_servers" for name in imported(path))
    may = ("launched_server", "embedded_engine", "attach", "bench", "cli", "null_servers")
    assert not knows or path.stem in may


@pytest.mark.parametrize("path", named(sorted(ROOT.glob("servers/**/*.py"))))
def test_the_servers_do_not_know_the_client(path: Path) -> None:
    assert not any(name.split(".")[0] == "loadgen" for name in imported(path))


@pytest.mark.parametrize("path", named(CODE))
def test_names_are_nouns_of_the_field(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ClassDef):
            assert not re.search(r"(Manager|Handler|Factory|Helper|Utils?)$", node.name), node.name
    assert path.stem not in ("utils", "helpers", "common", "misc")


def test_each_noun_of_the_client_is_used_once() -> None:
    classes = [
        node.name
        for path in sorted(ROOT.glob("loadgen/**/*.py"))
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert sorted(name for name, count in Counter(classes).items() if count > 1) == []


@pytest.mark.parametrize("path", named(TESTS))
def test_a_tests_name_has_fewer_than_70_characters(path: Path) -> None:
    assert [function.name for function in functions(parsed(path)) if len(function.name) >= 70] == []


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
    for node in ast.walk(parsed(path)):
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


# Each is the one place of its distribution that opens files for writing; the other writes a member of a zip.
WRITERS = {"loadgen/base/files.py", "servers/loadgen_servers/log_file.py"}
MEMBERS = {("loadgen/base/archive.py", "archive.open(info, 'w', force_zip64=True)")}
WRITING_CALLS = {
    *(
        "write_text",
        "write_bytes",
        "touch",
        "savefig",
        "tofile",
        "symlink_to",
        "hardlink_to",
        "savez",
        "to_csv",
    ),
    *("copy", "copy2", "copyfile", "copytree", "move", "FileHandler", "mknod", "mkfifo"),
}
WRITING_FLAGS = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC"}
OURS = {"files", "run_directory"}  # modules whose write_text is ours


def writes(node: ast.Call) -> bool:
    """Whether a call opens a file for writing by its name, or writes, copies or links one."""
    called = ast.unparse(node.func)
    of, _, name = called.rpartition(".")
    if called == "os.open":
        return any(isinstance(part, ast.Attribute) and part.attr in WRITING_FLAGS for part in ast.walk(node))
    if name == "open":
        words = [*node.args[:2], *(word.value for word in node.keywords if word.arg == "mode")]
        modes = [
            word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)
        ]
        return any(re.fullmatch(r"[rwaxbt+]{1,4}", mode) and set(mode) & set("wax+") for mode in modes)
    is_shutil = name in ("copy", "move")
    return name in WRITING_CALLS and of not in OURS and (not is_shutil or of == "shutil") and bool(of)


def test_files_are_written_in_one_place_which_follows_no_link() -> None:
    offenders = [
        f"{place}:{node.lineno} {ast.unparse(node)}"
        for path in PACKAGE
        if (place := str(path.relative_to(ROOT))) not in WRITERS
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and writes(node) and (place, ast.unparse(node)) not in MEMBERS
    ]
    assert offenders == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        *((f"open(path, {mode!r})", True) for mode in ("w", "wb", "a", "x", "r+", "ab+")),
        *((f"path.open({mode!r}, encoding='utf-8')", True) for mode in ("w", "a", "xb")),
        ("path.open(mode='w')", True),
        ("os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)", True),
        ("path.write_text(text)", True),
        ("figure.savefig(path)", True),
        ("shutil.copyfile(a, b)", True),
        ("shutil.copy(a, b)", True),
        ("open(path)", False),
        ("path.open('rb')", False),
        ("os.open(path, os.O_RDONLY)", False),
        ("files.write_text(path, text)", False),
        ("records.copy()", False),
        ("pool.open()", False),
    ],
)
def test_what_writes_a_file_is_known(code: str, expected: bool) -> None:
    assert writes(ast.parse(code).body[0].value) is expected  # type: ignore[attr-defined]


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
    from loadgen.run.options import bench_parser

    known = {option for action in bench_parser()._actions for option in action.option_strings}
    lines = [line for line in (ROOT / "README.md").read_text("utf-8").splitlines() if "loadgen bench" in line]
    assert lines
    for line in lines:
        flags = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", line.rpartition("loadgen bench")[2]))
        assert flags <= known, line
