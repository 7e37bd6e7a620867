"""The key is nowhere: not in a file, on the screen, in a command line or in a server's environment.

Whatever a server makes of it: everything that a command writes is searched for it, packed or not.
"""

from __future__ import annotations

import base64
import io
import json
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import psutil
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from builders.campaign_files import written
from builders.serving_scripts import engine_command
from fakes import scripted_server
from fakes.otlp_receiver import OtlpReceiver
from fakes.scripted_server import Answer, Asked, ScriptedServer, api, chunk, stream, usage, whole
from fakes.virtual_network import VirtualServer
from fakes.virtual_run import BASE_URL, run_on
from loadgen import cli
from loadgen.features.telemetry.prometheus_page import PrometheusPage
from loadgen.server import scraper

DONE, HEAD, LAST = scripted_server.DONE, scripted_server.HEAD, scripted_server.LAST
FORKS = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12, of any thread
KEY = "very+secret/0123456789_abcdef="
LOAD = ["--random-input-len", "8", "--random-output-len", "3", "--num-prompts", "6", "--max-concurrency", "2"]
SAVED = ["--save-result", "--save-detailed", "--result-filename", "r.json", "--explain"]
UNICODE = "".join(f"\\u{ord(character):04x}" for character in KEY)
ALIGNED = base64.b64encode(f"user:{KEY}".encode()).decode()
FORMS = (
    KEY,
    quote(KEY, safe=""),
    KEY.replace("/", "\\/"),
    base64.b64encode(KEY.encode()).decode().rstrip("="),
    KEY.encode().hex(),
    KEY.encode().hex().upper(),
    UNICODE,
    ALIGNED[8:-4],
    KEY.upper(),
)


@dataclass
class Scene:
    """A working directory, and the environment and the output of commands that run there."""

    place: Path
    patch: pytest.MonkeyPatch
    capfd: pytest.CaptureFixture[str]

    def serve(self, script: Callable[[Asked], Answer]) -> VirtualServer:
        """Have a virtual server answer at BASE_URL."""
        server = VirtualServer(script)
        run_on(server, self.patch)
        return server

    def run(self, *words: str) -> int:
        """The exit code of a command, as a shell would start it."""
        self.patch.setattr("sys.argv", ["loadgen", *words])
        return cli.main([*words])

    def bench(self, *words: str) -> int:
        return self.run("bench", *([] if "--base-url" in words else ["--base-url", BASE_URL]), *LOAD, *words)

    def assert_nowhere(self) -> None:
        """No form of the key was printed or is in a file, nor in what is printed of the runs later."""
        said = "".join(self.capfd.readouterr())
        assert [form for form in FORMS if form in said] == []
        assert holding(self.place) == []
        for result in self.place.glob("runs/*/result.json"):
            cli.main(["report", str(result.parent), "--explain"])
        assert KEY not in "".join(self.capfd.readouterr())


@pytest.fixture(autouse=True)
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Scene:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(scraper, "_IDLE_S", 0.2)
    return Scene(tmp_path, monkeypatch, capfd)


def unpacked(data: bytes) -> Iterator[bytes]:
    """What is in a file, and in what is packed in it."""
    yield data
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in archive.namelist():
                yield from unpacked(archive.read(name))
    elif data.startswith(b"\x93NUMPY"):
        column = np.load(io.BytesIO(data), allow_pickle=False)
        yield "\n".join(map(str, column.ravel())).encode() if column.dtype.kind in "US" else b""


def holding(place: Path) -> list[str]:
    """The files below a directory that hold the key."""
    needles = [form.encode() for form in FORMS]
    return [
        str(path.relative_to(place))
        for path in place.rglob("*")
        if path.is_file()
        and any(needle in part for part in unpacked(path.read_bytes()) for needle in needles)
    ]


@contextmanager
def watched() -> Iterator[dict[int, str]]:
    """Command lines and environments of all that this process starts, by pid."""
    seen: dict[int, str] = {}
    over = threading.Event()

    def watch() -> None:
        me = psutil.Process()
        while not over.wait(0.03):
            for process in [me, *me.children(recursive=True)]:
                try:
                    said = " ".join(process.cmdline())
                    if process != me:
                        said += str(process.environ())
                except (psutil.Error, OSError):
                    continue
                seen[process.pid] = seen.get(process.pid, "") + said

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def json_event(**more: object) -> bytes:
    choice = {"index": 0, "text": "a", "finish_reason": None} | more
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def streamed(*events: bytes) -> Answer:
    return Answer([HEAD, *map(chunk, events), LAST])


ECHOED = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}"}}).encode()
ESCAPED = ECHOED.replace(b"/", b"\\/")
ANSWERS: dict[str, Answer] = {
    "401": Answer([whole(ECHOED, "401 Unauthorized")]),
    "500": Answer([whole(ECHOED, "500 Internal Server Error")]),
    "text": Answer([whole(f"no: Bearer {KEY}".encode(), "403 Forbidden", "text/plain")]),
    "escaped": Answer([whole(ESCAPED, "401 Unauthorized")]),
    "quoted": Answer([whole(f"/?key={quote(KEY, safe='')}".encode(), "404 Not Found", "text/plain")]),
    "base64": Answer([whole(base64.b64encode(KEY.encode()), "401 Unauthorized", "text/plain")]),
    "hex": Answer([whole(KEY.encode().hex().encode(), "401 Unauthorized", "text/plain")]),
    "upper hex": Answer([whole(KEY.encode().hex().upper().encode(), "500 No", "text/plain")]),
    "aligned": Answer([whole(ALIGNED.encode(), "401 Unauthorized", "text/plain")]),
    "unicode": Answer([whole(f"no such key: {UNICODE}".encode(), "401 Unauthorized", "text/plain")]),
    "upper case": streamed(json_event(), json_event(finish_reason=KEY.upper()), usage(2), DONE),
    "cut": Answer([whole(b"x" * 180 + KEY.encode(), "401 Unauthorized", "text/plain")]),
    "html": Answer([whole(f"<html>{KEY}</html>".encode(), kind="text/html")]),
    "in-band": streamed(json_event(), b"data: " + ECHOED + b"\n\n", DONE),
    "malformed": streamed(json_event(), b"data: {" + KEY.encode() + b"\n\n", DONE),
    "not-http": Answer([KEY.encode() + b"\r\n\r\n"]),
    "status-line": Answer([b"HTTP/1.1 " + KEY.encode() + b"\r\n\r\n"]),
    "header": Answer([b"HTTP/1.1 200 OK\r\n" + KEY.encode() + b"\r\ncontent-length: 0\r\n\r\n"]),
    "finish-reason": streamed(json_event(), json_event(finish_reason=KEY), usage(2), DONE),
    "abort": streamed(json_event(), json_event(finish_reason="abort", stop_reason=KEY), usage(2), DONE),
    "said": streamed(json_event(text=KEY), json_event(finish_reason="length"), usage(2), DONE),
}


def sometimes(answer: Answer, every: int = 2) -> Callable[[Asked], Answer]:
    return lambda asked: answer if asked.number % every else stream()


@pytest.mark.parametrize(("share", "transport"), [("some", "wire"), ("all", "wire"), ("some", "httpx")])
@pytest.mark.parametrize("name", ANSWERS)
def test_a_server_that_echoes_it_gets_it_nowhere(name: str, share: str, transport: str, scene: Scene) -> None:
    script = sometimes(ANSWERS[name], 2 if share == "some" else 1)
    server = scene.serve(api(script if share == "some" else lambda _: ANSWERS[name]))
    words = ["--transport", transport, *SAVED]
    scene.bench(*words)
    scene.bench(*words, "--num-warmups", "2", "--quiet")
    assert any(f"Bearer {KEY}" in asked.head for asked in server.asked)
    scene.assert_nowhere()


def naming(owner: str, **told: object) -> Callable[[Asked], Answer]:
    """A server that says the key in what it tells of itself."""
    card = {"id": "m", "owned_by": owner, "max_model_len": 4096} | told

    def script(asked: Asked) -> Answer:
        method, path = asked.head.split(" ")[:2]
        if method == "POST":
            return stream()
        if path == "/v1/models":
            return Answer([whole(json.dumps({"data": [card]}).encode())])
        if path in ("/version", "/get_server_info", "/server_info", "/get_model_info"):
            info = {
                "version": f"1 {KEY}",
                "model_path": KEY,
                "served_model_name": KEY,
                "attention_backend": KEY,
            }
            return Answer([whole(json.dumps(info).encode())])
        if path == "/metrics":
            text = (
                f'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{model_name="{KEY}"}} 1\n'
            )
            return Answer([whole(text.encode(), kind="text/plain")])
        return Answer([whole(b"{}", "404 Not Found") if path != "/health" else whole(b"")])

    return script


@pytest.mark.parametrize("owner", ["someone", "vllm", "sglang"])
@pytest.mark.parametrize("told", [{}, {"id": f"model-{KEY}"}, {"root": f"/{KEY}"}])
def test_a_server_that_names_itself_so_gets_it_nowhere(
    owner: str, told: dict[str, object], scene: Scene
) -> None:
    scene.serve(naming(owner, **told))
    assert scene.bench(*SAVED) == 0
    scene.bench(*SAVED, "--model", "other")  # "it serves …"
    scene.bench(*SAVED, "--print-request")
    scene.assert_nowhere()


def sent_on(owner: str, scene: Scene) -> str:
    """Run on a server that names itself by the key; return what a scraper and a collector got of the run."""
    pages, finish = list[str](), PrometheusPage.finish

    def scrape(page: PrometheusPage, *rest: Any) -> None:
        finish(page, *rest)
        registry = CollectorRegistry()
        registry.register(page)
        pages.append(generate_latest(registry).decode())

    scene.patch.setattr(PrometheusPage, "finish", scrape)
    scene.serve(naming(owner, id=f"model-{KEY}", root=f"/{KEY}"))
    with OtlpReceiver() as collector:
        more = ["--prometheus", str(scripted_server.closed_port()), "--otel", collector.url]
        assert scene.bench("--label", f"token={KEY}", *more) == 0
        sent = "".join(map(str, (*pages, collector.spans, collector.resources, *collector.metrics.values())))
    assert pages[0].count("loadgen_run_info{") == 1
    assert len(collector.spans) == 6
    assert "model-***" in sent
    return sent


ROW = (
    "--set hw=h100 --set infmax_model_prefix=m --set precision=fp8 --set disagg=false --set tp=1 --set ep=1 "
    "--set is_multinode=false --set dp_attention=false"
)
# What reads a stored run, and writes or sends it: DIR is the run, OUT a new file.
READERS = (
    "report --html OUT DIR", "report --json DIR", "report --markdown OUT DIR BASE", "report --csv OUT DIR",
    "report --plot DIR", "report --svg OUT DIR", "compare DIR BASE", "compare --markdown DIR BASE",
    "gate DIR BASE --junit OUT --history HISTORY", "history HISTORY --html OUT", "explain DIR", "audit DIR",
    "export --jsonl --output OUT DIR", "export --csv --output OUT DIR", "bundle DIR -o OUT", "verify DIR",
    "export --format llm-d --output OUT DIR", f"export --format inferencex {ROW} --output OUT DIR",
)  # fmt: skip


@pytest.mark.whole
@pytest.mark.parametrize("owner", ["someone", "vllm", "sglang"])
def test_no_listener_reader_and_sender_of_a_run_has_it(owner: str, scene: Scene) -> None:
    sent = sent_on(owner, scene)
    assert [form for form in FORMS if form in sent] == []
    assert scene.bench() == 0
    run, base = sorted(scene.place.glob("runs/*"))
    scene.patch.setenv("GITHUB_STEP_SUMMARY", str(scene.place / "summary.md"))
    scene.patch.setenv("COLUMNS", "200")
    for number, line in enumerate(READERS):
        out, history = str(scene.place / f"{number}.html"), str(scene.place / "h.jsonl")
        places = {"DIR": str(run), "BASE": str(base), "OUT": out, "HISTORY": history}
        words = [places.get(word, word) for word in line.split()]
        assert cli.main(words) in (0, 6, 7), line  # one run decides nothing
    assert (scene.place / "summary.md").exists()
    scene.assert_nowhere()


@pytest.mark.whole
def test_a_collector_that_repeats_its_own_key_shows_it_nowhere(scene: Scene) -> None:
    scene.patch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"x-team={quote(KEY, safe='')}")
    scene.patch.setenv("OPENAI_API_KEY", "another-key-9")
    echo = Answer([whole(f"no such team: {KEY}".encode(), f"401 No {KEY}", "text/plain")])
    scene.serve(api(lambda _: stream()))
    with ScriptedServer(lambda _: echo) as other:
        assert scene.bench("--otel", other.base_url) == 0
    heads = [asked.head.lower() for asked in other.asked]
    assert any(f"x-team: {KEY}".lower() in head for head in heads)
    scene.assert_nowhere()


@pytest.mark.parametrize("end", [" ", "\r", "\n", "\r\n", "\t\n"])
@pytest.mark.parametrize("source", ["variable", "named", "file"])
def test_a_key_from_a_file_with_line_ends_works_and_is_not_shown(end: str, source: str, scene: Scene) -> None:
    scene.patch.setenv("OPENAI_API_KEY", KEY + end if source == "variable" else "other-key")
    scene.patch.setenv("MINE", KEY + end)
    key_file = scene.place.parent / f"{scene.place.name}-key"
    key_file.write_text(KEY + end, "utf-8", newline="")
    key_file.chmod(0o600)
    words = {
        "variable": [],
        "named": ["--api-key-env", "MINE"],
        "file": ["--api-key-file", str(key_file)],
    }[source]
    server = scene.serve(api(sometimes(ANSWERS["401"])))
    assert scene.bench(*words) == 0
    heads = [asked.head for asked in server.asked]
    assert all(f"authorization: bearer {KEY}".lower() in head.lower().splitlines() for head in heads)
    scene.assert_nowhere()


BAD_KEYS = [
    "sk-\u00e9-0123456789",
    "sk-one two",
    "sk-one\ntwo-0123456789",
    "sk-\x1b[2J0123456789",
    "sk-\u20ac",
]


@pytest.mark.parametrize("key", BAD_KEYS)
@pytest.mark.parametrize("verb", ["bench", "campaign"])
def test_a_key_that_cannot_be_one_is_refused_and_not_shown(key: str, verb: str, scene: Scene) -> None:
    scene.patch.setenv("OPENAI_API_KEY", key)
    server = scene.serve(api(lambda _: stream()))
    path = written(scene.place, {"name": "x", "base_url": BASE_URL}, repeats=1)
    assert (scene.bench() if verb == "bench" else cli.main([verb, str(path)])) == 2
    assert server.asked == []
    said = "".join(scene.capfd.readouterr())
    assert "OPENAI_API_KEY is not an API key: a key is one word of printable ASCII" in said
    files = [path.read_bytes() for path in scene.place.rglob("*") if path.is_file()]
    for part in key.split():
        assert part not in said
        assert not any(part.encode() in data for data in files)


HEADERS = [f"Authorization: Bearer {KEY}", f"Authorization:Bearer {KEY}", f"Authorization=Bearer {KEY}",
    f"X-Api-Key: {KEY}", f"api-key={KEY}", f"Cookie: session={KEY}"]  # fmt: skip


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_in_any_spelling_is_sent_and_not_shown(header: str, scene: Scene) -> None:
    scene.patch.delenv("OPENAI_API_KEY")
    server = scene.serve(api(sometimes(ANSWERS["401"])))
    words = [*SAVED, "--header", header]
    assert scene.bench(*words) == scene.bench(*words, "--print-request") == 0
    assert all(KEY in asked.head for asked in server.asked)
    scene.assert_nowhere()


@pytest.mark.parametrize(
    "header", [KEY, f"Bearer {KEY}", f"{KEY}\u00e9: 1", f"Authorization: {KEY}\n", f": {KEY}"]
)
def test_a_header_that_is_none_is_refused_and_not_shown(header: str, scene: Scene) -> None:
    scene.serve(api(lambda _: stream()))
    code = scene.bench("--header", header)
    assert code == (0 if header.endswith("\n") else 2)
    scene.assert_nowhere()


CHAT = ["--backend", "openai-chat", "--tokenizer", str(Path(__file__).parents[1] / "data" / "tokenizer")]
BODIES = [{"api_key": KEY}, {"a": {"auth_token": [KEY]}}, {"accessToken": KEY}]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("by", ["flag", "profile", "template"])
def test_a_key_in_the_body_is_sent_and_not_shown(body: dict[str, object], by: str, scene: Scene) -> None:
    scene.patch.delenv("OPENAI_API_KEY")
    flag = "--chat-template-kwargs" if by == "template" else "--extra-body"
    words = [flag, json.dumps(body), *(CHAT if by == "template" else [])]
    if by == "profile":
        place = scene.place.parent / f"{scene.place.name}.toml"
        lines = [f"{name} = {json.dumps(value).replace(': ', ' = ')}" for name, value in body.items()]
        place.write_text("\n".join(["[extra_body]", *lines]), "utf-8")
        words = ["--profile", str(place)]
    server = scene.serve(api(sometimes(ANSWERS["500"])))
    assert scene.bench(*SAVED, *words) == scene.bench(*SAVED, *words, "--print-request") == 0
    assert all(KEY.encode() in asked.body for asked in server.asked if asked.body)
    scene.assert_nowhere()


WRONG = [
    (["--extra-body", f'{{"api_key": "{KEY}"'], 2),
    (["--base-url", f"http://h/?api_key={KEY}"], 2),
    (["--base-url", f"http://me:{quote(KEY, safe='')}@h"], 2),
    (["--base-url", f"http://127.0.0.1:1#{KEY}"], 2),
    (["--api-key", KEY], 2),
    ([f"--api-key={KEY}"], 2),
    (["--metadata", f"api_key={KEY}"], 0),
    (["--label", f"token={KEY}"], 0),
]


@pytest.mark.parametrize(("words", "code"), WRONG)
def test_a_key_in_the_wrong_place_is_not_shown(words: list[str], code: int, scene: Scene) -> None:
    scene.patch.delenv("OPENAI_API_KEY")
    scene.serve(api(lambda _: stream()))
    assert scene.bench(*SAVED, *words) == code
    scene.assert_nowhere()


@pytest.mark.usefixtures("ports")
@pytest.mark.whole
@FORKS
@pytest.mark.parametrize("name", ["401", "finish-reason", "said"])
def test_a_campaign_writes_it_nowhere(name: str, scene: Scene) -> None:
    with ScriptedServer(api(lambda _: ANSWERS[name])) as server:
        path = written(scene.place, {"name": "x", "base_url": server.base_url}, repeats=1)
        cli.main(["campaign", str(path)])
        cli.main(["campaign", str(path), "--resume", "--dry-run"])
    assert list(Path("runs").glob("*/campaign.json"))
    scene.assert_nowhere()


@pytest.mark.usefixtures("ports")
@pytest.mark.whole
@FORKS
@pytest.mark.parametrize("how", ["embedded", "launched", "launched by name", "campaign", "selftest"])
def test_no_server_that_is_started_here_has_it(how: str, scene: Scene) -> None:
    scene.patch.setenv("HF_TOKEN", "kept-for-downloads")
    words = {
        "embedded": ["bench", "--quiet", *LOAD],
        "launched": ["bench", "--quiet", "--launch-command", engine_command(), *LOAD],
        "launched by name": ["bench", "--quiet", "--launch-command", engine_command(), *LOAD],
        "campaign": [],
        "selftest": ["selftest", "--seconds", "0.2", "--transport", "wire", "--no-save"],
    }[how]
    if how == "launched by name":
        scene.patch.delenv("OPENAI_API_KEY")
        scene.patch.setenv("MINE", KEY)
        words += ["--api-key-env", "MINE"]
    if how == "campaign":
        arm = {"name": "x", "launch_command": engine_command()}
        words = ["campaign", str(written(scene.place, arm, repeats=1)), "--allow-launch", "--quiet"]
    with watched() as processes:
        assert scene.run(*words) == 0
    started = [said for said in processes.values() if "loadgen_servers" in said]
    assert started
    assert all(KEY not in said for said in processes.values())
    if "launched" in how:  # engines download with it
        assert any("kept-for-downloads" in said for said in started)
    scene.assert_nowhere()


@pytest.mark.usefixtures("ports")
@pytest.mark.whole
@FORKS
def test_a_server_gets_what_it_is_given_by_name_and_its_log_says_nothing(scene: Scene) -> None:
    words = ["bench", "--quiet", "--launch-command", engine_command()]
    words += ["--server-env", f"OPENAI_API_KEY={KEY}"]
    with watched() as processes:
        assert scene.run(*words, *LOAD) == 0
    assert any(KEY in said for said in processes.values())
    assert scene.run(*words, "--dry-run") == 0
    scene.assert_nowhere()
