"""`loadgen bench`: from flags to the block, against a server at hand or the embedded engine."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

from loadgen import facts, live, plan, profile, report, result
from loadgen.endpoint import Access, Inquiry, Served
from loadgen.environment import HIDDEN, command_line, describe
from loadgen.errors import LoadgenError, MeasureError, UsageError
from loadgen.facts import Client, Facts, Server
from loadgen.flags import Options, parse
from loadgen.job import Target
from loadgen.measure import Manner, Outcome, measure
from loadgen.plan import Plan, Seed, Subject
from loadgen.profile import Profile
from loadgen.result import Result
from loadgen.runner import DEFAULT_TRANSPORT
from loadgen.vllm_json import parse_metadata, write_result
from loadgen_servers.embedded import Embedded, EngineFailed

INTERRUPTED = 130


def main(argv: Sequence[str]) -> int:
    """Run the command; the exit code is the worst of its profiles'."""
    options = parse(argv)
    profiles = _profiles(options)
    _check(options)
    seed = Seed(options.seed, chosen=True) if options.seed is not None else Seed.drawn()
    with ExitStack() as stack:
        access, wait_s = _access(options, stack)
        bench = _attach(options, access, wait_s)
        worst = 0
        for position, workload in enumerate(profiles):
            if options.print_request:
                print(bench.request(workload, seed))
                return 0
            # A profile named twice is a repeat: with the same prompts it would measure the cache.
            before = [earlier.name for earlier in profiles[:position]].count(workload.name)
            worst = max(worst, bench.run(workload, replace(seed, repeat=before)))
            if worst == INTERRUPTED:
                break
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


def _attach(options: Options, access: Access, wait_s: float) -> Bench:
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
    return Bench(options, subject, served, access.target("", tls))


def _model_directory(options: Options) -> str | None:
    """--model where it is a directory: then its tokenizer is there, as `vllm bench serve` has it."""
    return options.model if options.model and Path(options.model).is_dir() else None


@dataclass(frozen=True)
class Bench:
    """A server found ready, and what every profile of this command shares."""

    options: Options
    subject: Subject
    served: Served
    root: Target

    def request(self, workload: Profile, seed: Seed) -> str:
        """One request of a profile as it would be sent, secrets hidden."""
        made = plan.make(workload, self.subject, seed)
        body = made.body(0)
        target = self._target(made)
        shown = tuple((name, HIDDEN) for name, _ in target.headers)
        head = replace(target, headers=shown).request_head(len(body), "0")
        return head.decode("latin-1").replace("\r\n", "\n") + body.decode()

    def run(self, workload: Profile, seed: Seed) -> int:
        """Warm up, measure, print and save one profile; the exit code."""
        made = plan.make(workload, self.subject, seed)
        self._check_fits(made)
        started = result.now()
        directory = result.create_directory(
            Path(self.options.run_dir or "runs"), workload.name or "bench", started
        )
        manner = self._manner(made)
        display = live.display(self.options.quiet)
        try:
            warmed = self._warm_up(workload, seed, manner, display)
            outcome = measure(made, manner, display, workload.name or "bench")
        except (KeyboardInterrupt, LoadgenError):
            result.remove_empty(directory)
            raise
        finally:
            display.close()
        known = self._facts(made, outcome, warmed, started)
        return self._tell(Result(known, outcome.records), directory)

    def _target(self, made: Plan) -> Target:
        return replace(self.root, path=self.root.path.rstrip("/") + made.path)

    def _manner(self, made: Plan) -> Manner:
        options = self.options
        prefix = options.request_id_prefix
        return Manner(
            target=self._target(made),
            transport=self._transport(),
            http2=options.http2,
            request_id_prefix=f"loadgen-{secrets.token_hex(4)}-" if prefix is None else prefix,
            keep_text=options.save_detailed,
        )

    def _transport(self) -> str:
        """The transport asked for, or the one that fits the platform; raises UsageError."""
        chosen = self.options.transport or DEFAULT_TRANSPORT
        if chosen == "wire" and DEFAULT_TRANSPORT != "wire":
            raise UsageError("--transport wire needs Linux (epoll): use --transport httpx here")
        return chosen

    def _check_fits(self, made: Plan) -> None:
        limit = self.served.max_model_len
        if 0 < limit < made.longest:
            raise MeasureError(
                f"the longest request needs {made.longest} tokens and {self.served.model} takes {limit}: "
                "lower --random-input-len or --random-output-len"
            )

    def _warm_up(
        self, workload: Profile, seed: Seed, manner: Manner, display: live.Display
    ) -> tuple[int, int]:
        """Send the warm-up; how many requests, and how many failed. Raises MeasureError when all did."""
        if not workload.warmups:
            return 0, 0
        outcome = measure(plan.warmup(workload, self.subject, seed), manner, display, "warm-up")
        if outcome.interrupted:
            raise KeyboardInterrupt
        failures = [failure for failure in outcome.records.failures if failure is not None]
        if len(failures) == len(outcome.records):
            first = failures[0]
            raise MeasureError(f"every warm-up request failed, the first with {first.kind}: {first.detail}")
        return len(outcome.records), len(failures)

    def _facts(self, made: Plan, outcome: Outcome, warmed: tuple[int, int], started: datetime) -> Facts:
        served, health = self.served, outcome.health
        return Facts(
            started=started,
            finished=result.now(),
            command=command_line(),
            profile=made.profile,
            seed=made.seed.value,
            seed_chosen=made.seed.chosen,
            repeat=made.seed.repeat,
            plan_digest=made.digest(),
            prompt_format=made.prompts.format,
            ids_source=made.ids_source,
            server=Server(
                url=self._target(made).url,
                engine=served.engine.name,
                version=served.version,
                model=served.model,
                model_root=served.model_root,
                max_model_len=served.max_model_len,
                simulated=served.model_root if served.engine.simulated else "",
            ),
            tokenizer=self.options.tokenizer,
            warmups=warmed[0],
            warmup_failures=warmed[1],
            client=Client(
                transport=self._transport(),
                cpu_s=health.cpu_ns / 1e9,
                wall_s=(health.ended_ns - health.started_ns) / 1e9,
                clock_step_ms=health.clock_step_ns / 1e6,
                late_bodies=health.late_bodies,
                backlog_bytes=health.backlog_bytes,
            ),
            environment=describe(),
            notes=made.notes,
            cut_short=outcome.cut_short,
            interrupted=outcome.interrupted,
            label=self.options.label,
            metadata=self.options.metadata,
            requests=len(made),
        )

    def _tell(self, run: Result, directory: Path) -> int:
        """Print the report and write the files; the exit code."""
        options = self.options
        text = report.render(run)
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
        return MeasureError.exit_code if run.facts.cut_short else 0
