"""Exporters' expositions become energy, power and clocks of their GPUs, each under its machine's name."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from builders.loops import loop_over, loop_over_named, read_tables
from builders.only_run import stored
from fakes.scripted_server import Answer, Asked, ScriptedServer, api, closed_port, stream, whole
from loadgen import cli
from loadgen.base.errors import MeasureError, UsageError
from loadgen.features.sensors import power_urls, sensor_discovery
from loadgen.features.sensors.power_urls import FAMILIES, PowerUrls
from loadgen.host.machine_state import ClockState, MachineState
from loadgen.host.sensor import Key, Reading
from loadgen.run.assembly import check_options
from loadgen.run.command import options
from loadgen.run.live_display import choose_display
from loadgen.server.exchange import ControlAnswer, ServerAddress
from loadgen.settings.run_settings import check_power_url

TABLES = read_tables("power_urls")
S = 1_000_000_000
NODE = "http://node:9400"
ENERGY: Key = ("energy_j", "GPU 0 of a")


def dcgm(joules: float, gpu: int = 0, host: str = "a") -> str:
    """What DCGM's exporter reports of one GPU, in the form of its version 4."""
    labels = f'gpu="{gpu}",UUID="GPU-{host}{gpu}",device="nvidia{gpu}",modelName="L4",Hostname="{host}"'
    return (
        "# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).\n# TYPE DCGM_FI_DEV_SM_CLOCK gauge\n"
        f"DCGM_FI_DEV_SM_CLOCK{{{labels}}} 1980\nDCGM_FI_DEV_MEM_CLOCK{{{labels}}} 405\n"
        f"DCGM_FI_DEV_MEMORY_TEMP{{{labels}}} 0\nDCGM_FI_DEV_GPU_TEMP{{{labels}}} 31\n"
        f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} 16.365000\n"
        f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{labels}}} {joules * 1e3:.0f}\n"
    )


def rapl(joules: float) -> str:
    """What node_exporter reports of a package with its cores and memory, and of the same one by MMIO."""
    zone = 'index="0",path="/sys/class/powercap/intel-rapl'
    return (
        f'node_rapl_core_joules_total{{{zone}:0:0"}} {joules / 2}\n'
        f'node_rapl_package_joules_total{{{zone}:0"}} {joules}\n'
        f'node_rapl_package_joules_total{{{zone}-mmio:0"}} {joules}\n'
        f'node_rapl_dram_joules_total{{{zone}:0:1"}} {joules / 4}\nnode_cpu_seconds_total{{cpu="0"}} 1\n'
    )


class Exporters:
    """Exporters that answer with texts, one a poll, and their clock."""

    def __init__(self, *texts: str, url: str = NODE, own: Sequence[str] = (), cpu_ns: int = 0) -> None:
        self.at_ns, self.paths, self.texts, self.cpu_ns, self.takes_ns = S, list[str](), list(texts), 0, 0
        self.sensor = PowerUrls([ServerAddress(url)], own, self.ask, lambda: self.at_ns, lambda: self.cpu_ns)
        self.each_cpu_ns = cpu_ns

    def ask(self, places: Sequence[power_urls.Place], limit_s: float) -> list[ControlAnswer]:
        self.paths += [path for _, path in places]
        self.cpu_ns += self.each_cpu_ns
        self.at_ns += self.takes_ns
        text = self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]
        return [ControlAnswer("/metrics", 200, text.encode()) for _ in places]

    def read(self, at_s: float) -> Reading:
        self.at_ns = int(at_s * S)
        return self.sensor.read(())


def second(*texts: str, url: str = NODE, own: Sequence[str] = ()) -> Reading:
    """The second reading: of a counter the first is only where it began."""
    exporters = Exporters(*texts, url=url, own=own)
    exporters.read(1)
    return exporters.read(11)


LEVELS: dict[Key, float] = {
    ("sm_mhz", "GPU 0 of a"): 1980,
    ("memory_mhz", "GPU 0 of a"): 405,
    ("temperature_c", "GPU 0 of a"): 31,
}


@loop_over_named(("texts", "levels"), TABLES["expositions"])
def test_an_exposition_is_read_by_its_names(
    texts: Sequence[str], levels: dict[str, dict[str, float]]
) -> None:
    reading = second(*texts)
    values = {(what, where): value for where, found in levels.items() for what, value in found.items()}
    assert reading.values == pytest.approx(values)
    assert (reading.missing, set(reading.sources) >= set(levels)) == ((), True)


@loop_over_named(
    ("counted", "totals"),
    {
        "it rises": ([10, 20, 40, 45], [None, 10.0, 30.0, 35.0]),
        "it is updated now and then": ([10, 20, 20, 45], [None, 10.0, None, 35.0]),
        "it wraps: its pace goes on": ([65000, 65100, 80, 180], [None, 100.0, 200.0, 300.0]),
        "it wraps before it has a pace": ([65000, 80, 180], [None, 0.0, 100.0]),
    },
)
def test_a_fall_of_rapl_is_a_wrap(counted: Sequence[float], totals: Sequence[float | None]) -> None:
    exporters = Exporters(*(f'node_rapl_package_joules_total{{index="0"}} {each}\n' for each in counted))
    key: Key = ("package_j", "CPU package 0 of node")
    assert [exporters.read(1 + 10 * i).values.get(key) for i in range(len(counted))] == totals


def test_a_fall_of_a_gpu_s_counter_is_a_reset() -> None:
    exporters = Exporters(dcgm(100), dcgm(200), dcgm(5))
    assert [exporters.read(at).values.get(ENERGY) for at in (1, 2, 3)] == [None, 100.0, -95.0]


@loop_over(("text", "held"), TABLES["held back"])
def test_what_slows_a_gpu_has_nvml_s_words(text: str, held: list[str] | None) -> None:
    power = 'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-x"} 70\ngpu_package_power{gpu_id="0"} 70\n'
    found = Exporters(power + text).read(1).held_back
    assert found == (None if held is None else tuple(("GPU 0 of node", why) for why in held))


@loop_over(("url", "own", "places"), TABLES["own"])
def test_what_this_machine_reads_itself_is_not_counted_twice(
    url: str, own: Sequence[str], places: list[str]
) -> None:
    assert sorted(second(dcgm(1) + dcgm(1, 1) + rapl(4), url=url, own=own).sources) == places


def test_one_name_of_two_gpus_is_told_apart_by_their_uuids() -> None:
    rows = [f'DCGM_FI_DEV_POWER_USAGE{{gpu="0",UUID="GPU-{n}",Hostname="a"}} {n}\n' for n in (1, 2)]
    reading = Exporters("".join(rows)).read(1)
    assert reading.values == {("power_w", "GPU 0 of a"): 1.0, ("power_w", "GPU GPU-2 of a"): 2.0}


def test_exporters_are_asked_once_a_second_and_levels_are_kept() -> None:
    exporters = Exporters(dcgm(100), dcgm(130))
    first, again, later = (exporters.read(at) for at in (1, 1.5, 2))
    assert (first.values, again.values) == (LEVELS, LEVELS)
    assert later.values == {**LEVELS, ENERGY: 30.0}
    assert exporters.read(2.5).values == LEVELS
    assert len(exporters.paths) == 2


@loop_over(
    ("takes_s", "cpu_s", "polls"),
    [(0.0, 0.0, 8), (0.05, 0.0, 8), (0.2, 0.0, 4), (0.0, 0.015, 6), (0.0, 0.02, 4), (1.0, 0.0, 1)],
)
def test_slow_or_costly_exporters_are_asked_less_often(takes_s: float, cpu_s: float, polls: int) -> None:
    exporters = Exporters(dcgm(100), cpu_ns=int(cpu_s * S))
    exporters.takes_ns = int(takes_s * S)
    for half in range(16):
        exporters.read(1 + half / 2)
    assert len(exporters.paths) == polls


def test_its_state_is_clocks_heat_and_what_slows_it() -> None:
    exporters = Exporters(
        dcgm(1) + 'DCGM_FI_DEV_CLOCKS_EVENT_REASONS{gpu="0",UUID="GPU-a0",Hostname="a"} 4\n'
    )
    assert exporters.sensor.read_state(()) == MachineState(
        clocks={"GPU 0 of a SM": ClockState(now_mhz=1980), "GPU 0 of a memory": ClockState(now_mhz=405)},
        temperature_c={"GPU 0 of a": 31},
        held_back=("GPU 0 of a: power limit",),
    )
    assert exporters.sensor.facts() == {"power_urls": NODE}


@loop_over(
    ("text", "why"),
    [
        *TABLES["no power"],
        (f'DCGM_FI_DEV_POWER_USAGE{{gpu="{"0" * 3000}"}} 1\n', "has a line of 3033 characters: "
         f"'DCGM_FI_DEV_POWER_USAGE{{gpu=\"{'0' * 31}'"),
        ("".join(f'DCGM_FI_DEV_POWER_USAGE{{gpu="{n}",UUID="{n}"}} 1\n' for n in range(1025)),
         "has more than 1024 GPUs"),
    ],
)  # fmt: skip
def test_what_has_no_power_says_what_it_has(text: str, why: str) -> None:
    assert Exporters(text).read(1) == Reading(missing=(f"{NODE} {why}",))


@loop_over("value", ["NaN", "+Inf", "-Inf", "-5", "1e400", "1e300", "9007199254740993000000", "2147483635"])
def test_impossible_values_are_left_out(value: str) -> None:
    text = f'DCGM_FI_DEV_POWER_USAGE{{gpu="0",UUID="a"}} {value}\n' + dcgm(1, 1)
    assert {where for _, where in Exporters(text).read(1).values} == {"GPU 1 of a"}


def test_control_characters_of_labels_are_not_shown() -> None:
    text = 'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="x",Hostname="a\\nb\x1b[2J"} 70\n'
    ((_, where),) = Exporters(text).read(1).values
    assert where.isprintable()


@loop_over(
    "text", ["node:9400", "", "ftp://node", "http://", "http://node:0", "http://node:99999", "http://a\x07"]
)
def test_what_is_no_url_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an exporter's URL: give one as http://node:9400"):
        check_power_url(text)


def test_a_password_in_a_url_is_refused_and_not_shown() -> None:
    with pytest.raises(ValueError, match="leave out the rest") as refused:
        check_power_url("http://me:secret@node:9400")
    assert "secret" not in str(refused.value)


def test_the_flag_is_repeatable_and_checked_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    urls = ["--power-url", "http://a:9400/metrics", "--power-url", "http://b:9100"]
    line = ["--base-url", "http://x:8000", *urls]
    given = options.parse(line)
    assert given.power_url == ("http://a:9400", "http://b:9100")
    with pytest.raises(UsageError, match="leave out one"):
        check_options(options.parse([*line, "--no-observe"]))
    answers = [ControlAnswer("/metrics", 200, dcgm(1).encode()), ControlAnswer("/metrics", 404)]
    ask = lambda places, limit_s: answers  # noqa: E731
    monkeypatch.setattr(power_urls, "PowerUrls", lambda urls, own: PowerUrls(urls, own, ask))
    with pytest.raises(
        MeasureError, match=r"^--power-url: http://b:9100 answers 404; or leave the flag out$"
    ):
        power_urls.check_exporters(given)


def test_no_name_means_two_things() -> None:
    names = [name for family in FAMILIES for name in family.metrics]
    assert len(names) == len(set(names))
    assert all(name.startswith(family.marks) for family in FAMILIES for name in family.metrics)


def export(began_s: float) -> Callable[[Asked], Answer]:
    """DCGM's exporter of two machines, whose counters go on from `began_s`, under /dcgm/metrics alone."""

    def script(asked: Asked) -> Answer:
        if asked.head.split(" ")[1] != "/dcgm/metrics":
            return Answer([whole(b"", "404 Not Found")])
        passed_s = time.monotonic() - began_s
        rows = [
            f'{name}{{gpu="0",UUID="GPU-{host}",Hostname="{host}"}} {value:.0f}\n'
            for host, watts in (("a", 100.0), ("b", 300.0))
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
    sampler = sensor_discovery.start_sensors(None, given, choose_display(quiet=True))
    assert [type(sensor).__name__ for sensor in sampler.sensors] == ["PowerUrls"]
    assert sampler.read_state(probe=True).copy_gb_per_s is None


LOAD = "--num-prompts 40 --request-rate 10 --random-input-len 8 --random-output-len 3 --vocab-size 1000"


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_run_has_the_energy_of_two_machines_or_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        ScriptedServer(api(lambda _: stream())) as server,
        ScriptedServer(export(time.monotonic())) as exporter,
    ):
        words = ["bench", "--quiet", "--base-url", server.base_url, *LOAD.split(), "--power-url"]
        assert cli.main([*words, server.base_url]) == 1
        line = f"--power-url: {server.base_url} answers 404; or leave the flag out"
        assert line in capsys.readouterr().err
        assert [asked for asked in server.asked if asked.head.startswith("POST")] == []
        assert not Path("runs").exists()
        assert cli.main([*words, f"{exporter.base_url}/dcgm/metrics"]) == 0
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
