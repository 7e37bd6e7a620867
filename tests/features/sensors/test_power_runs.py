"""Exporters are asked over HTTP, and a run has the energy of the machines that it names."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.scripted_server import Answer, Asked, ScriptedServer, api, closed_port, stream, whole
from loadgen import cli
from loadgen.features.sensors import sensor_discovery
from loadgen.features.sensors.power_urls import PowerUrls
from loadgen.report.run_directory import REPORT, RESULT
from loadgen.run.command import options, progress
from loadgen.server.exchange import ServerAddress

WATTS = {"a": 100.0, "b": 300.0}


def export(began_s: float) -> Callable[[Asked], Answer]:
    """DCGM's exporter of two machines, whose counters go on from `began_s`, under /dcgm/metrics alone."""

    def script(asked: Asked) -> Answer:
        if asked.head.split(" ")[1] != "/dcgm/metrics":
            return Answer([whole(b"", "404 Not Found")])
        passed_s = time.monotonic() - began_s
        rows = [
            f'{name}{{gpu="0",UUID="GPU-{host}",Hostname="{host}"}} {value:.0f}\n'
            for host, watts in WATTS.items()
            for name, value in (
                ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1e6 + watts * passed_s * 1e3),
                ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", 0x40 if host == "b" else 0),
            )
        ]
        return Answer([whole("".join(rows).encode(), kind="text/plain; version=0.0.4")])

    return script


def test_exporters_are_asked_at_once_and_each_error_has_its_address() -> None:
    closed = f"http://127.0.0.1:{closed_port()}"
    with ScriptedServer(export(0.0)) as server:
        urls = [f"{server.base_url}/dcgm", server.base_url, closed]
        sensor = PowerUrls([ServerAddress(url) for url in urls])
        lines, reading = sensor.explain_failures(), sensor.read(())
        assert lines[0] == f"{server.base_url} answers 404"
        assert {asked.head.split(" ")[1] for asked in server.asked} == {"/dcgm/metrics", "/metrics"}
    assert lines == list(reading.missing)
    assert lines[1].startswith(f"{closed} does not answer: ")
    assert list(reading.sources) == ["GPU 0 of a", "GPU 0 of b"]
    assert reading.held_back == (("GPU 0 of b", "hardware thermal slowdown"),)


def test_of_a_server_elsewhere_only_what_exporters_report_is_read() -> None:
    given = options.parse(
        ["--base-url", "http://node:8000", "--power-url", f"http://127.0.0.1:{closed_port()}"]
    )
    sampler = sensor_discovery.start_sensors(None, given, progress.display(quiet=True))
    assert [type(sensor).__name__ for sensor in sampler.sensors] == ["PowerUrls"]
    assert sampler.read_state(probe=True).copy_gb_per_s is None


LOAD = ["--num-prompts", "40", "--request-rate", "10", "--random-input-len", "8", "--random-output-len", "3"]


def bench(server: ScriptedServer, *words: str) -> int:
    common = ["bench", "--quiet", "--base-url", server.base_url, "--vocab-size", "1000", *LOAD]
    return cli.main([*common, *words])


def stored() -> tuple[dict[str, Any], str]:
    (directory,) = Path("runs").iterdir()
    facts = json.loads((directory / RESULT).read_text("utf-8"))["loadgen"]
    return facts, " ".join((directory / REPORT).read_text("utf-8").split())


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_run_has_the_energy_of_two_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        ScriptedServer(api(lambda _: stream())) as server,
        ScriptedServer(export(time.monotonic())) as exporter,
    ):
        assert bench(server, "--power-url", f"{exporter.base_url}/dcgm/metrics") == 0
        assert len(exporter.asked) < 30
        url = f"{exporter.base_url}/dcgm"
    facts, report = stored()
    energy = facts["sensed"]["energy"]
    assert energy["mean_w"] == pytest.approx(400, rel=0.05)
    assert {where: joules / energy["joules"] for where, joules in energy["parts"].items()} == {
        "GPU 0 of a": pytest.approx(0.25, rel=0.05),
        "GPU 0 of b": pytest.approx(0.75, rel=0.05),
    }
    assert facts["environment"]["power_urls"] == url
    assert "J per output token (energy counter of DCGM's exporter at 127.0.0.1:" in report
    assert "GPU: GPU 0 of b: hardware thermal slowdown in 100 % of samples" in report
    assert "gpu-throttled" in json.dumps(facts["verdict"])


@pytest.mark.whole
def test_an_exporter_that_does_not_answer_ends_the_command_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with ScriptedServer(api(lambda _: stream())) as server:
        assert bench(server, "--power-url", server.base_url) == 1
        assert [asked for asked in server.asked if asked.head.startswith("POST")] == []
        line = f"--power-url: {server.base_url} answers 404; or leave the flag out"
    assert line in capsys.readouterr().err
    assert not Path("runs").exists()
