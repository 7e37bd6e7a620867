"""Several loads in one command: at the end one table has a row for each."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen import cli

WORKLOAD = "input_len = 8\noutput_len = 2\nnum_prompts = 2\nmax_concurrency = {}\nnum_warmups = 1\n"


@pytest.mark.parametrize(
    ("profiles", "rows"),
    [
        pytest.param("./light.toml", 0, id="one load"),
        pytest.param("./light.toml,./light.toml", 0, id="one load twice"),
        pytest.param("./light.toml,./heavy.toml", 2, id="two loads"),
    ],
)
@pytest.mark.usefixtures("engines")
def test_a_table_of_loads_is_printed_last(
    profiles: str,
    rows: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, limit in (("light", 1), ("heavy", 2)):
        (tmp_path / f"{name}.toml").write_text(WORKLOAD.format(limit), "utf-8")
    assert cli.main(["bench", "--quiet", "--preset", "instant", "--profile", profiles]) == 0
    out = capsys.readouterr().out
    table = out.partition("\n8 in / 2 out, 2 requests\n")[2].splitlines()
    assert [line.split()[:2] for line in table if line.lstrip().startswith(("light ", "heavy "))] == [
        ["light", "1"],
        ["heavy", "2"],
    ][:rows]
    assert ("instant (SIMULATED)" in table) is bool(rows)
