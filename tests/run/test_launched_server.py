"""Launched: a server started for the command is benchmarked, known to be ours, and gone afterwards."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from builders.recorded_sensors import RecordedNvml
from builders.serving_scripts import engine_command, launch_command
from fakes.container_engine import put_container_engine
from fakes.supervised import nothing_is_left
from loadgen import cli
from loadgen.features.sensors import sensor_discovery
from loadgen.host.nvml import Gpus
from loadgen.host.sensor import Absent
from loadgen.report.run_directory import ARRIVALS, REPORT, RESULT
from loadgen.run import launched_server
from loadgen.run.command.options import parse
from loadgen.server.sample_file import SAMPLES
from loadgen.settings.validation import ServerSettings

pytestmark = [
    pytest.mark.whole,
    pytest.mark.usefixtures("ports"),
    # Python 3.12 warns of any thread at a fork; the child takes none of their locks.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
ROOT = Path(__file__).parents[2]
LOAD = ["--random-input-len", "8", "--random-output-len", "3", "--num-prompts", "4", "--max-concurrency", "2"]
INSTANT = engine_command("--preset", "instant", "--served-model-name", "m")
HEALTHY = "Server().serve()"
AS_VLLM = "Server(owner='vllm').serve()"


def bench(line: str, *words: str) -> int:
    return cli.main(["bench", "--quiet", "--launch-command", line, *LOAD, *words])


def stored(name: str = "bench") -> dict[str, Any]:
    """Our part of a run's result."""
    (path,) = Path("runs").glob(f"*-{name}/{RESULT}")
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))["loadgen"]
    return found


def report() -> str:
    """The whole report of the one run, on one line."""
    (path,) = Path("runs").glob("*-bench/report.txt")
    return " ".join(path.read_text("utf-8").split())


@pytest.mark.parametrize(
    ("given", "url"),
    [
        (["--receive-spans"], "http://127.0.0.1:4318/v1/traces"),
        (["--receive-spans", "0.0.0.0:5000"], "http://127.0.0.1:5000/v1/traces"),
        (["--receive-spans", "[::]:5000"], "http://127.0.0.1:5000/v1/traces"),
        (["--receive-spans", "192.0.2.1:5000"], "http://192.0.2.1:5000/v1/traces"),
        ([], ""),
    ],
)
def test_an_engine_exports_its_spans_to_where_they_are_received(given: list[str], url: str) -> None:
    options = parse(["--launch", "vllm", "--model", "org/model", *given])
    words = shlex.split(launched_server.dry_run(options, ServerSettings(), asks=False))
    assert ("--otlp-traces-endpoint" in words, url in words) == (bool(url), bool(url))
    assert ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf" in words) == bool(url)


def test_one_server_serves_all_profiles_and_each_run_has_its_log(
    ports: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        Path(f"{name}.toml").write_text("", "utf-8")
    assert bench(INSTANT, "--profile", "./one.toml,./two.toml") == 0
    out = capsys.readouterr().out
    assert out.count("Successful requests:                     4 ") == 2
    (port,) = ports
    (log,) = Path("runs").glob("*-command-server/server.log")
    assert f'"base_url":"http://127.0.0.1:{port}"' in log.read_text("utf-8")
    for name in ("one", "two"):
        (directory,) = Path("runs").glob(f"*-{name}")
        kept = {path.name for path in directory.iterdir()} - {SAMPLES}  # of a run that lasted until a sample
        assert kept == {RESULT, ARRIVALS, REPORT, "server.log"}
        assert log.read_bytes().startswith((directory / "server.log").read_bytes())
        known = stored(name)["launched"]
        assert (known["how"], known["image"]) == ("command", "")
        assert known["owned"] == "the listening socket belongs to the process tree that was started"
        assert known["command"][1:] == [*shlex.split(INSTANT)[2:-1], str(port)]
        assert set(known["environment"]) == {"PYTHONPATH"}
    assert len(list(Path("runs").iterdir())) == 3


def test_the_report_from_files_says_how_the_server_was_started(
    ports: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(INSTANT) == 0
    (directory,) = Path("runs").glob("*-bench")
    capsys.readouterr()
    assert cli.main(["report", str(directory)]) == 0
    out = capsys.readouterr().out
    assert out == (directory / "report.txt").read_text()
    line = " ".join(out.split())
    begun = r"started by command, ready after \d\.\d s, first token after \d\.\d s: "
    assert re.search(rf"{begun}\S+ -m loadgen_servers\.engine .*{ports[0]} ", line)


def test_repeats_share_the_server_and_no_prompt(ports: list[int]) -> None:
    assert bench(INSTANT, "--repeat", "2") == 0
    assert len(ports) == 1
    assert len(list(Path("runs").glob("*-bench*/server.log"))) == 2


@pytest.mark.parametrize(
    ("server", "words", "told"),
    [
        (AS_VLLM, [], "emptied before the run"),
        (HEALTHY, [], ""),
        (HEALTHY, ["--reset-cache"], "unknown has no way to empty its cache"),
    ],
)
def test_where_an_engine_can_empty_its_cache_it_does_before_each_run(
    server: str, words: list[str], told: str, tmp_path: Path
) -> None:
    assert bench(launch_command(tmp_path, server), *words) == 0
    assert stored()["cache_reset"].startswith(told)
    assert f"prefix cache: {told}" in report() or not told
    assert ("prefix cache:" in report()) is bool(told)


def test_server_memory_is_measured_and_missing_sensors_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensor_discovery, "find_gpus", lambda: Absent("no NVIDIA GPU here"))
    monkeypatch.setattr(sensor_discovery, "find_board", lambda root: None)
    assert bench(launch_command(tmp_path, HEALTHY)) == 0
    said = report()
    sensed = stored()["sensed"]
    assert sensed["rss"]["peak_bytes"] > 1 << 20
    assert sensed["energy"] is None
    assert "energy: unknown" in said
    assert "not read: no NVIDIA GPU here" in said


def test_the_gpus_of_this_machine_are_those_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensor_discovery, "find_gpus", lambda: Gpus(RecordedNvml("h200")))
    assert bench(launch_command(tmp_path, HEALTHY)) == 0
    known = stored()
    assert "H200" in known["environment"]["gpu"]
    assert known["sensed"]["device"]["peak_bytes"] == 136_000_000_000
    assert "less the 126.66 GiB in use before it" in report()


@pytest.mark.parametrize("comes_back", [True, False])
def test_the_next_start_waits_until_the_gpus_memory_is_back(
    comes_back: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it does not come back, not for ever."""
    in_use = iter([10 << 30, *[90 << 30] * 5, 10 << 30] if comes_back else [10 << 30])
    if not comes_back:
        monkeypatch.setattr(launched_server, "_MEMORY_S", 0.1)
    rest = [] if comes_back else [90 << 30]
    monkeypatch.setattr(sensor_discovery, "read_device_memory_bytes", lambda: next(in_use, *rest))
    assert bench(launch_command(tmp_path, HEALTHY), "--no-observe") == 0
    assert list(in_use) == []


def test_nothing_is_observed_where_that_was_asked_for(tmp_path: Path) -> None:
    assert bench(launch_command(tmp_path, HEALTHY), "--no-observe") == 0
    known = stored()
    assert (known["sensed"], known["window"]) == (None, None)
    assert "gpu" not in known["environment"]
    assert "energy" not in report()


def unseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory for temporary files that is empty."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


def test_a_request_is_shown_as_the_launched_server_would_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the key of other servers."""
    unseen(tmp_path, monkeypatch)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    assert bench(launch_command(tmp_path, HEALTHY), "--print-request") == 0
    out = capsys.readouterr().out
    assert "authorization" not in out.lower()
    assert out.startswith("POST /v1/completions HTTP/1.1\n")
    assert json.loads(out.partition("\n\n")[2])["model"] == "m"
    assert not Path("runs").exists()
    assert not list(Path(tempfile.gettempdir()).iterdir())


def test_the_log_of_a_server_that_failed_stays_to_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    unseen(tmp_path, monkeypatch)
    assert bench(launch_command(tmp_path, "print('why', flush=True)"), "--print-request") == 1
    (log,) = Path(tempfile.gettempdir()).rglob("server.log")
    assert log.read_text("utf-8") == "why\n"
    assert str(log) in capsys.readouterr().err


def test_files_of_the_model_that_is_served_are_read(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    config = {"quantization_config": {"quant_method": "awq", "bits": 4}, "vocab_size": 100}
    (tmp_path / "model/config.json").write_text(json.dumps(config), "utf-8")
    line = launch_command(tmp_path, "Server(model=sys.argv[2]).serve()") + " {model}"
    assert bench(line, "--model", str(tmp_path / "model")) == 0
    known = stored()
    assert known["checkpoint"]["quantization"] == "AWQ-4bit"
    assert str(tmp_path / "model") in known["ids_source"]


def test_a_secret_that_a_server_logs_is_in_no_run_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "{'model': 'm', 'api_key': ['hush-hush']} HF_TOKEN=hush-2"
    assert bench(launch_command(tmp_path, f"print({words!r}, flush=True)\n{HEALTHY}")) == 0
    (directory,) = Path("runs").glob("*-bench")
    assert "'api_key': ***" in (directory / "server.log").read_text("utf-8")
    said = capsys.readouterr()
    for content in (said.out.encode(), said.err.encode(), *(p.read_bytes() for p in directory.iterdir())):
        assert b"hush" not in content


KILLER = """
def kill_the_client(*_):
    client = int(open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1])
    os.kill(client, signal.SIGKILL)
    time.sleep(1000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a parent's parent is read from /proc")
@pytest.mark.parametrize(
    "server",
    [
        pytest.param("Server(health=kill_the_client)", id="before it is ready"),
        pytest.param("Server(kill_the_client)", id="at the first token"),
        pytest.param("Server(lambda asked: asked.number > 3 and kill_the_client() or None)", id="in the run"),
    ],
)
def test_a_client_that_is_killed_leaves_no_server(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = launch_command(tmp_path, f"{KILLER}\nprint(sys.argv[1], flush=True)\n{server}.serve()")
    argv = [sys.executable, "-m", "loadgen", "bench", "--launch-command", line, *LOAD]
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT}/servers")
    ended = subprocess.run(argv, capture_output=True, timeout=60)
    assert ended.returncode == -9
    (log,) = Path("runs").glob("*-command-server/server.log")
    nothing_is_left(str(tmp_path), int(log.read_text("utf-8").split()[0]))


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a fake docker, and of the programs that are in its image."""
    directory = tmp_path / "bin"
    directory.mkdir()
    put_container_engine(directory / "docker")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return directory


def contained(docker: Path, code: str, *words: str) -> int:
    """Benchmark what the image's vllm does: its port is the word after --port."""
    start = "import sys\nsys.argv[1:] = [sys.argv[sys.argv.index('--port') + 1]]\n"
    launch_command(docker, f"{start}{code}")
    program = (docker / "server.py").rename(docker / "vllm")
    program.write_text(f"#!{sys.executable} -S\n{program.read_text()}")
    program.chmod(0o755)
    engine = ["--container-engine", str(docker / "docker"), "--model", "org/m"]
    return cli.main(["bench", "--quiet", "--launch-container", "IMAGE", *engine, *LOAD, *words])


def test_an_engine_in_a_container_is_benchmarked_and_stopped_as_one(docker: Path) -> None:
    assert contained(docker, "Server(owner='vllm', model='org/m').serve()", "--context-len", "99") == 0
    known = stored()
    told = known["launched"]
    assert (told["how"], told["image"]) == ("container", "IMAGE")
    assert told["owned"] == "the listening socket belongs to the process tree that was started"
    assert told["command"][-2:] == ["--max-model-len", "99"]
    assert known["sensed"]["rss"]["peak_bytes"] > 1 << 20
    assert "Successful requests: 4" in report()
    assert {path.name for path in docker.iterdir()} == {"docker", "vllm"}  # and no container


def test_an_engine_that_dies_in_its_container_is_told_as_one_that_dies(
    docker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert contained(docker, "die(3, 'torch.OutOfMemoryError: CUDA out of memory')") == 1
    said = capsys.readouterr().err
    assert "container ended with 3 before it was ready: the GPU's memory ran out" in said
    assert {path.name for path in docker.iterdir()} == {"docker", "vllm"}
