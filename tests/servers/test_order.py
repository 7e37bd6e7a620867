"""The folders of the servers and of the benchmarks: a module imports only what stands before it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from builders.loops import loop_over

ROOT = Path(__file__).parents[2]
SERVERS, BENCHMARKS = ROOT / "servers" / "loadgen_servers", ROOT / "benchmarks"
# fmt: off
ORDER = {
    SERVERS: [
        "child_process", "log_file", "http_server", "null/messages", "null/server", "null/__main__",
        "engine/step_times", "engine/prefix_cache", "engine/scheduler", "engine/presets", "engine/stalling",
        "engine/messages", "engine/request", "engine/anthropic_messages", "engine/openai_responses",
        "engine/metrics", "engine/server", "engine/cli", "engine/__main__", "launch/spec", "launch/installed",
        "launch/vllm", "launch/sglang", "launch/transformers", "launch/llamacpp", "launch/custom",
        "launch/container", "launch/launchers", "process/failure_causes", "process/embedded",
        "process/port_owner", "process/supervisor", "process/running",
    ],
    BENCHMARKS: [
        "harness/process", "harness/page", "harness/truth", "harness/made_files", "harness/faulty_server",
        "harness/self_signed", "harness/collector", "harness/stalled_run", "harness/scores",
        "harness/impaired_path", "clients/adapters", "simulated/engine", "simulated/populations",
        "simulated/calibration", "simulated/queue", "simulated/serving", "simulated/dependence",
        "simulated/drifts", "bars/trials", "bars/streams", "bars/starved", "bars/local", "bars/data",
        "bars/replay", "bars/sessions", "bars/scale", "bars/images", "bars/install", "bars/limits",
        "bars/limits_floors", "bars/limits_clock", "bars/saturation", "bars/telemetry", "bars/attributing",
        "changing", "comparing", "gating", "kills", "memory", "attribution_cost", "merging", "pictures",
        "planned", "random_runs", "recipe_pictures", "run",
    ],
}  # fmt: skip
# fmt: on


def modules(package: Path) -> list[str]:
    found = (path.relative_to(package).with_suffix("").as_posix() for path in package.rglob("*.py"))
    return [name for name in found if not name.endswith("__init__")]


def imported(package: Path, module: str) -> Iterator[str]:
    """The modules of the package that one of them imports."""
    for node in ast.walk(ast.parse((package / f"{module}.py").read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == package.name:
            inside = node.module.split(".")[1:]
            for names in (inside, *([*inside, alias.name] for alias in node.names)):
                if "/".join(names) in ORDER[package]:
                    yield "/".join(names)


@loop_over("package", ORDER)
def test_every_module_has_its_place(package: Path) -> None:
    assert sorted(modules(package)) == sorted(ORDER[package])
    folders = [name.rpartition("/")[0] for name in ORDER[package]]
    assert len(set(folders)) == sum(a != b for a, b in zip(folders, [*folders[1:], None], strict=True))


@loop_over("package", ORDER)
def test_imports_point_left(package: Path) -> None:
    for at, module in enumerate(ORDER[package]):
        for target in imported(package, module):
            assert ORDER[package].index(target) < at, f"{module} imports {target}"
