"""The tree keeps its shape: budgets, import arrows, docstrings, words that have no place in it."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter

import pytest
from packaging.requirements import Requirement

from builders.lint import CLIENT, CODE, ROOT, RULES, SERVERS, TESTS, Source, of_each, survey

PACKAGE = [*CLIENT, *SERVERS]
TEXT = [
    path
    for pattern in (
        "*.md",
        "*.toml",
        "docs/**/*.md",
        "skills/**/*.md",
        "profiles/*.toml",
        "benchmarks/**/*.c",
        ".ci/*",
    )
    for path in sorted(ROOT.glob(pattern))
    if path.is_file()
]

# Imports point left, those inside functions too: what is in a folder imports from its own and those before
# it. Files next to the folders are of two kinds: what every folder uses, and the command and the package,
# which use every folder.
FOLDERS = [
    "base", "engines", "wire", "settings", "plan", "transport", "records", "figures", "host",
    "server", "facts", "verdict", "report", "run", "features", "fleet", "study",
]  # fmt: skip
# An import that points right: --cluster is found where every other part of a run is.
SENT_BY_A_CLUSTER = ("run.assembly", "fleet.cluster_session")
# The modules of the core that choose among features, or need one in few runs: no other imports any. Each
# lists those of its subject in their order, and nothing that it imports may import it.
CHOOSERS = {
    "settings.data_settings", "plan.profile", "plan.plan",
    "transport.capture_process", "verdict.server_checks", "verdict.verdict",
    "report.run_writer", "report.request_rows", "report.report",
    "run.command.bench", "run.firing", "run.measurement", "run.observation",
    "run.worker_count", "run.assembly", "run.embedded_engine", "run.launched_server", "run.attach",
    "run.session",
}  # fmt: skip
INSIDE = {
    "study": [
        "repeats", "load_table", "series_record", "sweep_record", "limit_record", "labels", "quality",
        "run_summary", "bundle", "speed", "importers", "consistency", "compare", "answer", "compare_command",
        "audit", "pages", "describe_command", "history", "series", "gate", "verify", "bundle_command",
    ],
    "features": [
        "traces", "data", "sessions", "ring", "workers", "sensors", "shards", "targets", "telemetry",
        "roofline", "selftest", "apis", "export", "fingerprint", "routed", "speculation", "images",
        "attribution",
    ],
}  # fmt: skip
FIRST, LAST = set[str](), {"cli", "__main__", "__init__"}
MOST_FILES = 8  # beside the folders

# A child process must end whatever happens in it, and say why. A sensor's driver or library raises what it
# likes, and none of it is worth a run. What is made of a measured run is made part by part, and an exception
# that nobody foresaw must cost its part alone, which names it.
CATCHES_ALL = {
    ("capture_process.py", "BaseException"),
    ("workers.py", "BaseException"),
    ("errors.py", "Exception"),
}
CATCHES_ALL |= {(name, "Exception") for name in ("execution.py", "point_runs.py")}
CATCHES_ALL |= {("session.py", "BaseException")}
CATCHES_ALL |= {("api.py", "BaseException")}  # it is raised in the thread that waits
MOST_LINES, MOST_LINES_OF_A_FUNCTION, MOST_PARAMETERS = 900, 80, 8


@of_each([*CODE, *TESTS])
def test_files_and_functions_keep_their_budget(source: Source) -> Iterator[str]:
    if len(source.text.splitlines()) > MOST_LINES:
        yield f"over {MOST_LINES} lines"
    for function in source.functions:
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if lines > MOST_LINES_OF_A_FUNCTION:
            yield f"{function.name} has {lines} lines"
        arguments = function.args
        if len([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]) > MOST_PARAMETERS:
            yield f"{function.name} has over {MOST_PARAMETERS} parameters"


@of_each(CODE)
def test_nothing_catches_everything(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if not isinstance(node, ast.ExceptHandler):
            continue
        if node.type is None:
            yield f"line {node.lineno}: bare except"
            continue
        caught = {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)}
        broad = {(source.path.name, name) for name in caught & {"Exception", "BaseException"}}
        if not broad <= CATCHES_ALL:
            yield f"line {node.lineno}: {ast.unparse(node.type)}"


@of_each(PACKAGE)
def test_what_is_public_says_what_it_is(source: Source) -> Iterator[str]:
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    body = source.tree.body
    if not ast.get_docstring(source.tree) and (source.path.name != "__init__.py" or body):
        yield "the module has no docstring"
    public = [node for node in body if isinstance(node, kinds) and node.name[0] != "_"]
    yield from (f"{node.name} has no docstring" for node in public if not ast.get_docstring(node))


@of_each([*CODE, *TESTS])
def test_every_module_has_lazy_annotations(source: Source) -> Iterator[str]:
    defines = any(isinstance(node, ast.ClassDef | ast.FunctionDef) for node in source.tree.body)
    if source.path.parent.name == "settings" and source.path.stem.endswith("_settings"):
        return  # its annotations say what flags are made of, and are evaluated with the class
    if defines and "__future__.annotations" not in source.imports:
        yield "from __future__ import annotations is missing"


@of_each([*CODE, *TESTS])
def test_no_import_is_relative(source: Source) -> Iterator[str]:
    yield from sorted(name for name in source.imports if name.startswith("."))


def place(module: str) -> tuple[int, int]:
    """Where a module of the client stands: the rank of its folder, and of its part of that folder."""
    folder, _, rest = module.partition(".")
    if folder in FOLDERS:
        parts = INSIDE.get(folder, [])
        part = rest.partition(".")[0]
        return FOLDERS.index(folder), parts.index(part) if part in parts else -1
    return (-1 if folder in FIRST else len(FOLDERS)), 0


@cache
def client_imports() -> dict[str, set[str]]:
    """Every module of the client, dotted below `loadgen`, and those of its own that it imports."""
    imports = {
        ".".join(path.relative_to(ROOT / "loadgen").with_suffix("").parts): names
        for path, names in survey().imports.items()
    }
    return {
        module: {name.removeprefix("loadgen.") for name in names if name != "loadgen"} & set(imports)
        for module, names in imports.items()
    }


def test_the_folders_are_the_architecture() -> None:
    beside = [path for path in ROOT.glob("loadgen/*") if path.is_file() and path.suffix != ".pyc"]
    assert len(beside) <= MOST_FILES
    assert {path.stem for path in beside if path.suffix == ".py"} == FIRST | LAST
    assert {path.parent.name for path in ROOT.glob("loadgen/*/__init__.py")} == set(FOLDERS)
    for folder, parts in INSIDE.items():
        code = ROOT.glob(f"loadgen/{folder}/**/*.py")  # a folder that moved may leave compiled files
        found = {path.relative_to(ROOT / "loadgen" / folder).parts[0].removesuffix(".py") for path in code}
        assert found - {"__init__"} == set(parts)


def is_feature(module: str) -> bool:
    return module.startswith("features.")


def is_core(module: str) -> bool:
    return module.partition(".")[0] in FOLDERS[: FOLDERS.index("features")]


def test_imports_point_left() -> None:
    chosen = {
        (module, target)
        for module, targets in client_imports().items()
        for target in targets
        if module in CHOOSERS and is_feature(target)
    } | {SENT_BY_A_CLUSTER}
    wrong = [
        f"{module} imports {target}"
        for module, targets in client_imports().items()
        for target in sorted(targets)
        if module != "__init__" and place(target) > place(module) and (module, target) not in chosen
    ]
    assert wrong == []


def test_features_are_imported_where_one_is_chosen() -> None:
    core = {module: targets for module, targets in client_imports().items() if is_core(module)}
    knowing = {module for module, targets in core.items() if any(map(is_feature, targets))}
    assert knowing == CHOOSERS


def test_a_feature_imports_the_core_and_no_other_feature() -> None:
    feature = re.compile(r"features\.(\w+)\.")
    wrong = [
        f"{module} imports {target}"
        for module, targets in client_imports().items()
        for target in sorted(targets)
        if (own := feature.match(module)) and (other := feature.match(target)) and own[1] != other[1]
    ]
    assert wrong == []


def test_the_client_imports_neither_the_fleet_nor_the_study() -> None:
    apart = ("fleet", "study")
    wrong = [
        f"{module} imports {target}"
        for module, targets in client_imports().items()
        for target in sorted(targets)
        if not module.startswith(apart) and module not in LAST and target.startswith(apart)
        if (module, target) != SENT_BY_A_CLUSTER
    ]
    assert wrong == []


@of_each(CLIENT)
def test_no_module_is_imported_by_a_text(source: Source) -> Iterator[str]:
    """An editor, mypy and the tests above see the imports that are statements."""
    if source.path.name not in ("cli.py", "__init__.py") and "import_module" in source.text:
        yield "imports a module by its name"


def test_no_import_goes_round_in_a_circle() -> None:
    graph = {
        module: targets - {module, "__init__"}
        for module, targets in client_imports().items()
        if module != "__init__"
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as cycle:
        pytest.fail(" imports ".join(cycle.args[1]))


@of_each(CLIENT)
def test_only_the_command_knows_the_servers(source: Source) -> Iterator[str]:
    may = ("launched_server", "reached_server", "embedded_engine", "attach", "bench", "cli", "capacity")
    if source.path.stem not in may:
        yield from sorted(name for name in source.imports if name.split(".")[0] == "loadgen_servers")


@of_each(SERVERS)
def test_the_servers_do_not_know_the_client(source: Source) -> Iterator[str]:
    yield from sorted(name for name in source.imports if name.split(".")[0] == "loadgen")


@of_each(CODE)
def test_names_are_nouns_of_the_field(source: Source) -> Iterator[str]:
    vague = re.compile(r"(Manager|Handler|Factory|Helper|Utils?)$")
    classes = [node.name for node in source.nodes if isinstance(node, ast.ClassDef)]
    yield from filter(vague.search, classes)
    if source.path.stem in ("utils", "helpers", "common", "misc"):
        yield "the name of the module"


def test_each_noun_of_the_client_is_used_once() -> None:
    counts = Counter(name for name in survey().classes if not name.startswith("_"))
    assert sorted(name for name, count in counts.items() if count > 1) == []


@of_each(TESTS)
def test_a_tests_name_has_fewer_than_70_characters(source: Source) -> Iterator[str]:
    yield from (function.name for function in source.functions if len(function.name) >= 70)


def paths_of_a_machine(text: str) -> Iterator[str]:
    """The paths in a text that only one machine has, with their lines."""
    machine = re.compile(r"(?<![\w.}])/(" + "work|opt|root|home" + r")/\w")
    if machine.search(text):
        for number, line in enumerate(text.splitlines(), 1):
            if machine.search(line):
                yield f"line {number}: {line.strip()}"


@of_each([*CODE, *TESTS])
def test_no_path_of_somebodys_machine_is_in_code(source: Source) -> Iterator[str]:
    yield from paths_of_a_machine(source.text)


def test_no_path_of_somebodys_machine_is_in_a_page() -> None:
    found = {path.name: list(paths_of_a_machine(path.read_text("utf-8"))) for path in TEXT}
    assert {name: lines for name, lines in found.items() if lines} == {}


DOCS = [
    "metrics", "results", "profiles", "design", "validity", "selftest", "reconciliation", "engines",
    "servers", "jetson", "spark", "roofline", "reliability", "security",
]  # fmt: skip


def test_the_docs_are_there() -> None:
    sizes = {name: (ROOT / "docs" / f"{name}.md").stat().st_size for name in DOCS}
    assert {name: size for name, size in sizes.items() if size <= 500} == {}


@of_each(CODE)
def test_nothing_that_comes_from_outside_is_run(source: Source) -> Iterator[str]:
    """No pickle, no eval or exec, no shell, no YAML that makes objects."""
    yield from sorted(source.imports & {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"})
    for node in source.nodes:
        if isinstance(node, ast.Call) and runs_text(node):
            yield f"line {node.lineno}: {ast.unparse(node)}"


_UNSAFE_YAML = ("yaml.load", "yaml.full_load", "yaml.unsafe_load")


def runs_text(node: ast.Call) -> bool:
    """Whether a call evaluates its text, by Python or a shell, or lets a file be evaluated."""
    if isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec", "compile", "__import__"):
        return True
    called = ast.unparse(node.func)
    if called in ("os.system", "os.popen", "subprocess.getoutput") or called.startswith(_UNSAFE_YAML):
        return True
    allowed = {word.arg for word in node.keywords if ast.unparse(word.value) == "True"}
    return bool(allowed & {"shell", "allow_pickle"})


# Each is the one place of its distribution that opens files for writing; the others write a member of a zip
# and into memory.
WRITERS = {"loadgen/base/files.py", "servers/loadgen_servers/log_file.py"}
MEMBERS = {
    ("loadgen/base/arrays.py", "archive.open(info, 'w', force_zip64=True)"),
    ("loadgen/study/bundle_command.py", "archive.open(info, 'w')"),
    (
        "loadgen/study/pages/pictures.py",
        "figure.savefig(file, format=form, dpi=144, metadata=_METADATA[form])",
    ),
}
WRITING_CALLS = {
    "write_text", "write_bytes", "touch", "savefig", "tofile", "symlink_to", "hardlink_to", "savez", "to_csv",
    "copy", "copy2", "copyfile", "copytree", "move", "FileHandler", "mknod", "mkfifo",
}  # fmt: skip
WRITING_FLAGS = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC"}
OURS = {"files", "run_writer"}  # modules whose write_text is ours


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


@of_each(PACKAGE)
def test_files_are_written_in_one_place_which_follows_no_link(source: Source) -> Iterator[str]:
    if source.name in WRITERS:
        return
    for node in source.nodes:
        if isinstance(node, ast.Call) and writes(node) and (source.name, ast.unparse(node)) not in MEMBERS:
            yield f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize(("calls", "expected"), [
    (
        [
            *(f"open(path, {mode!r})" for mode in ("w", "wb", "a", "x", "r+", "ab+")),
            *(f"path.open({mode!r}, encoding='utf-8')" for mode in ("w", "a", "xb")),
            "path.open(mode='w')",
            "os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)",
            "path.write_text(text)",
            "figure.savefig(path)",
            "shutil.copyfile(a, b)",
            "shutil.copy(a, b)",
        ],
        True,
    ),
    (
        ["open(path)", "path.open('rb')", "os.open(path, os.O_RDONLY)", "files.write_text(path, text)",
         "records.copy()", "pool.open()"],
        False,
    ),
])  # fmt: skip
def test_what_writes_a_file_is_known(calls: list[str], expected: bool) -> None:
    nodes = {code: ast.parse(code, mode="eval").body for code in calls}
    found = {code: isinstance(node, ast.Call) and writes(node) for code, node in nodes.items()}
    assert found == dict.fromkeys(calls, expected)


# What each rule refuses: a piece of code with one offence.
REFUSED = [
    ("test_files_and_functions_keep_their_budget", "pass\n" * 901),
    ("test_files_and_functions_keep_their_budget", "def f():\n" + "    pass\n" * 80),
    ("test_files_and_functions_keep_their_budget", "def f(a, b, c, d, e, /, f, *, g, h, i): ..."),
    ("test_nothing_catches_everything", "try: ...\nexcept: ..."),
    ("test_nothing_catches_everything", "try: ...\nexcept (OSError, Exception): ..."),
    ("test_what_is_public_says_what_it_is", "a = 1"),
    ("test_what_is_public_says_what_it_is", '"""A module."""\ndef public(): ...'),
    ("test_every_module_has_lazy_annotations", "def f(): ..."),
    ("test_no_import_is_relative", "from .. import x"),
    ("test_no_module_is_imported_by_a_text", "from importlib import import_module"),
    ("test_only_the_command_knows_the_servers", "def f():\n    import loadgen_servers"),
    ("test_the_servers_do_not_know_the_client", "import loadgen.cli"),
    ("test_names_are_nouns_of_the_field", "class RunManager: ..."),
    ("test_a_tests_name_has_fewer_than_70_characters", f"def test_{'a' * 65}(): ..."),
    ("test_no_path_of_somebodys_machine_is_in_code", f"a = 1\nb = '/{'root'}/x'"),
    ("test_nothing_that_comes_from_outside_is_run", "import pickle"),
    ("test_nothing_that_comes_from_outside_is_run", "eval(text)"),
    ("test_nothing_that_comes_from_outside_is_run", "yaml.load_all(text, Loader)"),
    ("test_nothing_that_comes_from_outside_is_run", "run(text, shell=True)"),
    ("test_files_are_written_in_one_place_which_follows_no_link", "path.write_text(text)"),
]


def test_each_rule_refuses_what_it_is_for() -> None:
    made = ROOT / "made.py"
    found = [(name, len(list(RULES[name][0](Source(made, text))))) for name, text in REFUSED]
    assert [each for each in found if each[1] == 0] == []
    assert {name for name, (rule, _) in RULES.items() if rule.__module__ == __name__} == set(dict(REFUSED))


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
    from loadgen.run.command.options import bench_parser

    known = {option for action in bench_parser()._actions for option in action.option_strings}
    lines = [line for line in (ROOT / "README.md").read_text("utf-8").splitlines() if "loadgen bench" in line]
    assert lines
    for line in lines:
        flags = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", line.rpartition("loadgen bench")[2]))
        assert flags <= known, line
