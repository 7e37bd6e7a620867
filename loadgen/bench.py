"""`loadgen bench`: from flags to the block, against a server at hand or the embedded engine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from loadgen import facts, profile, repeats, report, result
from loadgen.endpoint import Access, Inquiry
from loadgen.errors import MeasureError, UsageError
from loadgen.flags import Options, parse
from loadgen.plan import Seed, Subject
from loadgen.profile import Profile
from loadgen.result import Result
from loadgen.run import Session
from loadgen.verdict import Level
from loadgen.vllm_json import parse_metadata, write_result
from loadgen_servers.embedded import Embedded, EngineFailed

INTERRUPTED = 130
INVALID = 3


def main(argv: Sequence[str]) -> int:
    """Run the command; the exit code is the worst of its profiles'."""
    options = parse(argv)
    profiles = _profiles(options)
    _check(options)
    seed = Seed(options.seed, chosen=True) if options.seed is not None else Seed.drawn()
    with ExitStack() as stack:
        access, wait_s = _access(options, stack)
        session = _attach(options, access, wait_s)
        if options.print_request:
            print(session.request(profiles[0], seed))
            return 0
        worst = 0
        for position, workload in enumerate(profiles):
            # A profile named twice is a repeat: with the same prompts it would measure the cache.
            before = [earlier.name for earlier in profiles[:position]].count(workload.name)
            first = replace(seed, repeat=before * options.repeat)
            worst = max(worst, _repeatedly(session, workload, first))
            if worst == INTERRUPTED:
                break
    return worst


def _repeatedly(session: Session, workload: Profile, first: Seed) -> int:
    """Run a profile as often as asked, each time with prompts of its own; the worst exit code."""
    worst, runs = 0, list[Result]()
    for repeat in range(session.options.repeat):
        run, directory = session.run(workload, replace(first, repeat=first.repeat + repeat))
        worst = max(worst, _tell(session.options, run, directory))
        if worst == INTERRUPTED:
            break
        runs.append(run)
    if len(runs) > 1:
        found = repeats.spreads([run.metrics for run in runs], [run.steady for run in runs])
        print("\n".join(repeats.render(found)), flush=True)
        path = directory.with_name(f"{directory.name}-repeats.json")
        write_result(path, repeats.json(found))
        print(f"repeats: {path}", flush=True)
    return worst


def _profiles(options: Options) -> list[Profile]:
    names, overrides = options.profiles, options.overrides
    profiles = [profile.load(name, overrides) for name in names] or [profile.build(overrides)]
    for workload in profiles:
        facts.check(workload)
    return profiles


def _check(options: Options) -> None:
    """Find before anything is started what could not be done at the end; raises UsageError."""
    parse_metadata(options.metadata)
    if options.http2:
        if options.transport != "httpx":
            raise UsageError("--http2 goes with --transport httpx")
        if not (options.base_url or "").startswith("https"):
            raise UsageError("--http2 is negotiated over TLS: it needs an https base URL")
        if find_spec("h2") is None:
            raise UsageError("--http2 needs the http2 extra: pip install 'llm-loadgen[http2]'")
    if options.saves:
        result.create_place(Path(options.result_dir or "."), "--result-dir")


def _access(options: Options, stack: ExitStack) -> tuple[Access, float]:
    """How to reach the server, starting the embedded engine where none is named."""
    headers = dict(options.headers)
    key = os.environ.get("OPENAI_API_KEY")
    if options.base_url is not None:
        if options.preset is not None:
            raise UsageError(
                "--preset is the embedded engine's timing: leave out --base-url, --host and --port"
            )
        if key and not any(name.lower() == "authorization" for name in headers):
            headers["Authorization"] = f"Bearer {key}"
        return Access(_base_url(options), headers, options.insecure), options.ready_check_timeout_s
    arguments = [] if options.preset is None else ["--preset", options.preset]
    if options.model is not None or options.served_model_name is not None:
        arguments += ["--served-model-name", options.served_model_name or options.model or ""]
    embedded = stack.enter_context(Embedded(arguments))
    try:
        listening = embedded.start()
    except EngineFailed as error:
        raise UsageError(f"the embedded engine did not start: {error}") from None
    return Access(listening.base_url, headers), 10.0


def _base_url(options: Options) -> str:
    """The base URL without the `/v1` that some people include and the endpoint repeats."""
    assert options.base_url is not None
    base_url = options.base_url.rstrip("/")
    return base_url.removesuffix("/v1") if (options.endpoint or "/v1").startswith("/v1") else base_url


def _attach(options: Options, access: Access, wait_s: float) -> Session:
    tls = access.tls()
    model = options.served_model_name or options.model
    served = Inquiry(access, tls).ask(model, wait_s)
    subject = Subject(
        engine=served.engine,
        model=served.model,
        model_root=served.model_root or options.model or "",
        tokenizer=options.tokenizer or _model_directory(options),
        vocab_size=options.vocab_size,
        endpoint=options.endpoint,
    )
    return Session(options, access, served, subject, access.target("", tls))


def _model_directory(options: Options) -> str | None:
    """--model where it is a directory: then its tokenizer is there, as `vllm bench serve` has it."""
    return options.model if options.model and Path(options.model).is_dir() else None


def _tell(options: Options, run: Result, directory: Path) -> int:
    """Print the report and write the files; the exit code."""
    text = report.render(run, explain=options.explain)
    print(text, flush=True)
    run.save(directory, text + "\n")
    print(f"run directory: {directory}", flush=True)
    if options.saves:
        path = Path(options.result_dir or ".") / (options.result_filename or run.filename())
        write_result(path, run.json(options.save_detailed), options.append_result)
        print(f"result file: {path}", flush=True)
    if run.facts.interrupted:
        return INTERRUPTED
    if not run.records.ok.any():
        print("loadgen: every request failed: nothing was measured", file=sys.stderr)
        return MeasureError.exit_code
    if run.facts.cut_short:
        return MeasureError.exit_code
    return INVALID if options.strict and run.verdict.level is Level.INVALID else 0
