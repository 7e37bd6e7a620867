"""What the package shows of itself: its names, their types, and the notebook that uses them."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import loadgen

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "docs" / "notebooks" / "first-run.ipynb"


@pytest.mark.whole
def test_the_package_names_all_that_is_public_and_imports_it_late() -> None:
    assert set(loadgen.__all__) <= set(dir(loadgen))
    for name in loadgen.__all__:
        assert inspect.getdoc(getattr(loadgen, name)), name
    with pytest.raises(AttributeError, match="nothing"):
        _ = loadgen.nothing
    late = "'numpy', 'asyncio', 'httpx', 'pydantic'"
    code = f"import sys, loadgen; print([name for name in ({late}) if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"


def test_the_api_is_typed_for_those_who_use_it() -> None:
    mypy = pytest.importorskip("mypy.api")
    stdout, stderr, code = mypy.run(["--strict", str(ROOT / "tests" / "typing" / "api.py")])
    assert (code, stderr) == (0, ""), stdout


@pytest.mark.whole
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    names: dict[str, Any] = {}

    async def kernel() -> None:
        for cell in cells:
            if cell["cell_type"] != "code":
                continue
            code = compile("".join(cell["source"]), NOTEBOOK.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            awaited = eval(code, names)
            if inspect.isawaitable(awaited):
                await awaited

    asyncio.run(kernel())
    assert names["run"].metrics.completed > 0
    assert math.isfinite(names["run"].metrics.ttft.p99_ms)
