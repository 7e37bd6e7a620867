"""Run: one profile against a server that was found ready: warmed up, watched and measured."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen import answers, as_run, attainable, calibration, control, host, live, plan, result, sensors
from loadgen.cell import Cell
from loadgen.checkpoint import Checkpoint
from loadgen.control import Trace
from loadgen.endpoint import Access, Served
from loadgen.environment import HIDDEN, command_line, describe, git_state, hide
from loadgen.errors import LoadgenError, MeasureError, UsageError
from loadgen.facts import Client, Facts, Launched, Server, asked
from loadgen.fingerprint import Fingerprint
from loadgen.flags import Options
from loadgen.job import Target
from loadgen.live import Display
from loadgen.measure import Manner, Outcome, measure, never
from loadgen.metrics import compute
from loadgen.observe import Observer
from loadgen.plan import Plan, Seed, Subject
from loadgen.portable import is_loopback
from loadgen.profile import Profile
from loadgen.record import Records
from loadgen.result import Result
from loadgen.roofline.subject import Flags
from loadgen.runner import DEFAULT_TRANSPORT
from loadgen.sensing import Sensing
from loadgen.window import ServerWindow

_LEAST_INTERVAL_MS = 0.5  # of the self-test's messages: one process writes them all
LAST_WORDS = "; its whole log: "  # stands between what became of a server and the end of its log
_IDLE_S = 1.0  # of power at rest, where there is a sensor of it
_MOST_LOG_BYTES = 4 << 20
_FAILED_S = 10.0  # for a server that failed to end: SGLang's takes five seconds to notice itself
_REST_S = 3.0  # at most, for a server to be done with the warm-up


def _nothing(wait_s: float) -> None:
    """Nobody knows whether a server lives that was not started here."""


class Local(msgspec.Struct, frozen=True):
    """A server on this machine: its processes, and, where it was started for the run, its log and its end."""

    pids: Callable[[], Sequence[int]]
    log: Path | None = None
    launched: Launched | None = None
    # Raises MeasureError where it has ended; a server that just failed may need so many seconds to.
    check_alive: Callable[[float], None] = _nothing
    gone: Callable[[], bool] = lambda: False  # whether it has ended
    device_before_bytes: int | None = None  # GPU memory in use before it was started


class Session(msgspec.Struct, frozen=True):
    """A server found ready, and what every profile of a command shares."""

    options: Options
    access: Access
    served: Served
    subject: Subject
    root: Target
    local: Local | None = None  # None: the server is on another machine
    checkpoint: Checkpoint | None = None  # what the model's files say, where they are on this machine
    # By the API they were asked in; whatever is made of this session by `replace` shares them.
    fingerprints: dict[str, Fingerprint] = msgspec.field(default_factory=dict)
    cell: Cell | None = None  # of a campaign, whose runs these are

    def check_alive(self, failed: bool) -> None:
        """Raises MeasureError where a server of ours has ended; one that failed gets time for it."""
        if self.local is not None:
            self.local.check_alive(_FAILED_S if failed else 0.0)

    @property
    def context_limit(self) -> int:
        """Tokens of the longest request the server takes, by its word or the model's files; 0: not known."""
        declared = self.checkpoint.max_positions if self.checkpoint is not None else None
        return self.served.max_model_len or declared or 0

    def first_token(self, workload: Profile) -> None:
        """See that the server can do what it says: one token, in the way the workload asks for them.

        Raises MeasureError where none comes.
        """
        least = {"num_warmups": 1, "input_len": 8, "output_len": 1, "prefix_len": 0, "range_ratio": "0"}
        asked = plan.warmup(workload.model_copy(update=least), self.subject, Seed.drawn())
        outcome = measure(asked, self._manner(asked), live.Silent(), "first token", nullcontext())
        if outcome.interrupted:
            raise KeyboardInterrupt
        failures = [failure for failure in outcome.records.failures if failure is not None]
        if failures:
            raise MeasureError(
                f"{self.access.base_url} is up and gives no token: {failures[0].kind}: {failures[0].detail}"
            )

    def keep(self, run: Result, directory: Path, text: str) -> None:
        """Write a run's directory: its files, its report, and what a server of ours has said so far."""
        run.save(directory, text + "\n")
        # Engines print their keys.
        if self.local is not None and self.local.log is not None:
            said = self.local.log.read_bytes().decode("utf-8", "replace")
            (directory / self.local.log.name).write_text(hide(said), "utf-8")

    def request(self, workload: Profile, seed: Seed) -> str:
        """One request of a profile as it would be sent, secrets hidden."""
        made = plan.make(workload, self.subject, seed)
        body = made.body(0)
        target = self._target(made)
        shown = tuple((name, HIDDEN) for name, _ in target.headers)
        head = replace(target, headers=shown).request_head(len(body), "0")
        return head.decode("latin-1").replace("\r\n", "\n") + body.decode()

    def run(self, workload: Profile, seed: Seed) -> tuple[Result, Path]:
        """Measure one profile; its result, and the empty directory that is to hold it.

        Raises UsageError or MeasureError, and leaves no directory then.
        """
        made = plan.make(workload, self.subject, seed)
        self._check_fits(made)
        started = result.now()
        directory = result.create_directory(
            Path(self.options.run_dir or "runs"), workload.name or "bench", started
        )
        display = live.display(self.options.quiet)
        try:
            return self._measured(made, started, display), directory
        except (KeyboardInterrupt, LoadgenError):
            result.remove_empty(directory)
            raise
        finally:
            display.close()

    def _measured(self, made: Plan, started: datetime, display: Display) -> Result:
        manner = self._manner(made)
        reset = self._reset_cache()
        sensing = self._sensing()
        warmed = self._warm_up(made, manner, display)
        if self.options.selftest:
            _measure_client(made.profile, manner.transport, warmed)
        before = host.snapshot() if is_loopback(self.root.host) else None
        with self._traced() as trace:
            outcome, window = self._watched(made, manner, display, sensing, _REST_S if len(warmed) else 0.0)
        throttled = host.throttled(before, host.snapshot()) if before is not None else ()
        known = self._facts(made, outcome, started, sensing)
        health = outcome.health
        learned = {
            "warmups": len(warmed),
            "warmup_failures": int((~warmed.ok).sum()),
            "throttled": throttled,
            "window": window,
            "sensed": sensing.sensed(health.started_ns, health.ended_ns) if sensing is not None else None,
            "cache_reset": reset,
            "traced": "" if trace is None else str(trace),
            "calibration": calibration.remembered(
                manner.transport, calibration.environment_digest(known.environment)
            ),
        }
        learned |= self._fingerprint(made, outcome, display)
        known = known.model_copy(update=learned)
        bound, why = attainable.ceiling(known, roofline_flags(self.options))
        return Result(known.model_copy(update={"ceiling": bound, "no_ceiling": why}), outcome.records)

    def _fingerprint(self, made: Plan, outcome: Outcome, display: Display) -> dict[str, Any]:
        """The answers to the greedy prompts, asked once, after the first run, which they do not disturb."""
        if not self.options.fingerprint:
            return {}
        if made.path in self.fingerprints:
            return {"fingerprint": self.fingerprints[made.path]}
        if outcome.interrupted or not outcome.records.ok.any():
            why = "stopped by Ctrl-C before it was taken" if outcome.interrupted else "every request failed"
            return {"fingerprint": Fingerprint.none(why)}
        try:
            said = answers.ask(self.access, self.root.tls, self.subject, made, display.show)
        except KeyboardInterrupt:
            why = "stopped by Ctrl-C while the fingerprint was taken"
            return {"fingerprint": Fingerprint.none(why), "cut_short": why, "interrupted": True}
        self.fingerprints[made.path] = said
        return {"fingerprint": said}

    def _reset_cache(self) -> str:
        """Empty the prefix cache where that was asked for, or the server is ours; what came of it."""
        engine, ours = self.served.engine, self.local is not None and self.local.launched is not None
        if not self.options.reset_cache and not (ours and engine.reset_path):
            return ""
        return control.reset_cache(self.access, self.root.tls, engine) or "emptied before the run"

    def _sensing(self) -> Sensing | None:
        """The sensors of this machine, where the server is on it, and its power at rest."""
        if self.local is None or not self.options.observe or self.served.engine.simulated:
            return None
        sensing = Sensing(sensors.found(), self.local.pids, before_bytes=self.local.device_before_bytes)
        sensing.rest(_IDLE_S)
        return sensing

    def _traced(self) -> AbstractContextManager[Trace | None]:
        directory = self.options.launching.trace_directory
        if directory is None:
            return nullcontext()
        return control.tracing(self.access, self.root.tls, self.served.engine, directory)

    def _watched(
        self, made: Plan, manner: Manner, display: Display, sensing: Sensing | None, rest_s: float
    ) -> tuple[Outcome, ServerWindow | None]:
        """The measured run, the server's own counters read before, during and after it."""
        title = made.profile.name or "bench"
        if self.cell is not None:
            title = f"r{self.cell.repeat} {self.cell.arm}, {title}"
        if not self.options.observe:
            return measure(made, manner, display, title, nullcontext()), None
        observer = Observer(self.access, self.root.tls, self.served.model)
        observer.before(rest_s)
        if self.local is not None:
            self.local.pids()  # to look for them costs less while there are few connections
        sampled = sensing.sampling() if sensing is not None else nullcontext()
        outcome = measure(made, manner, display, title, _both(observer.sampling(), sampled))
        # Ctrl-C: nobody waits for counters to settle.
        return outcome, None if outcome.interrupted else observer.after()

    def _target(self, made: Plan) -> Target:
        return replace(self.root, path=self.root.path.rstrip("/") + made.path)

    def _manner(self, made: Plan) -> Manner:
        options = self.options
        prefix = options.request_id_prefix
        return Manner(
            target=self._target(made),
            transport=transport(options),
            http2=options.http2,
            request_id_prefix=f"loadgen-{secrets.token_hex(4)}-" if prefix is None else prefix,
            keep_text=options.save_detailed,
            gone=self.local.gone if self.local is not None else never,
        )

    def _check_fits(self, made: Plan) -> None:
        limit = self.served.max_model_len
        if 0 < limit < made.longest:
            raise MeasureError(
                f"the longest request needs {made.longest} tokens and {self.served.model} takes {limit}: "
                "lower --random-input-len or --random-output-len"
            )

    def _warm_up(self, made: Plan, manner: Manner, display: Display) -> Records:
        """Send the warm-up, and what came of it; raises MeasureError when every request failed."""
        if not made.profile.warmups:
            return Records.of([])
        warmup = plan.warmup(made.profile, self.subject, made.seed)
        outcome = measure(warmup, manner, display, "warm-up", nullcontext())
        if outcome.interrupted:
            raise KeyboardInterrupt
        failures = [failure for failure in outcome.records.failures if failure is not None]
        if len(failures) == len(outcome.records):
            self.check_alive(failed=True)  # what it died of tells more
            first = failures[0]
            raise MeasureError(f"every warm-up request failed, the first with {first.kind}: {first.detail}")
        return outcome.records

    def _facts(self, made: Plan, outcome: Outcome, started: datetime, sensing: Sensing | None) -> Facts:
        health = outcome.health
        return Facts(
            started=started,
            finished=result.now(),
            command=command_line(),
            profile=made.profile.model_copy(update={"server": None}),  # it may hold secrets
            seed=made.seed.value,
            seed_chosen=made.seed.chosen,
            repeat=made.seed.repeat,
            plan_digest=made.digest(),
            prompt_format=made.prompts.format,
            ids_source=made.ids_source,
            server=self._server(made),
            tokenizer=self.options.tokenizer,
            client=Client(
                transport=transport(self.options),
                cpu_s=health.cpu_ns / 1e9,
                wall_s=(health.ended_ns - health.started_ns) / 1e9,
                clock_step_ms=health.clock_step_ns / 1e6,
                late_bodies=health.late_bodies,
                backlog_bytes=health.backlog_bytes,
            ),
            environment=self._environment(sensing),
            notes=made.notes,
            cut_short=outcome.cut_short,
            interrupted=outcome.interrupted,
            label=self.options.label,
            metadata=self.options.metadata,
            cell=self.cell,
            requests=max(1, len(outcome.records) if made.total is None else made.total),
            repeated_prompts=plan.repeated_prompts(made),
            **self._server_side(),
        )

    def _environment(self, sensing: Sensing | None) -> dict[str, str]:
        """This machine and our own software; of its GPUs too where the server is on it."""
        own = {**describe(), "git": git_state()}
        seen = sensors.facts(sensing.sensors) if sensing is not None else {}
        return {name: said for name, said in {**own, **seen}.items() if said}

    def _server_side(self) -> dict[str, Any]:
        """What is known of the server: how it was started, its model's files, what it says that it runs."""
        local, engine = self.local, self.served.engine
        says = control.server_info(self.access, self.root.tls, engine) if self.options.observe else {}
        parts = [as_run.from_server_info(says)] if says else []
        if local is not None and local.log is not None:
            parts.append(as_run.parse(_read(local.log)))
        return {
            "launched": local.launched if local is not None else None,
            "checkpoint": self.checkpoint,
            "as_run": as_run.merged(*parts) if parts else None,
        }

    def _server(self, made: Plan) -> Server:
        served = self.served
        return Server(
            url=self._target(made).url,
            engine=served.engine.name,
            version=served.version,
            model=served.model,
            model_root=served.model_root,
            max_model_len=served.max_model_len,
            simulated=served.model_root if served.engine.simulated else "",
        )


@contextmanager
def _both(first: AbstractContextManager[object], second: AbstractContextManager[object]) -> Iterator[None]:
    with first, second:
        yield


def _read(log: Path) -> str:
    """The log's beginning: what an engine says of itself it says when it starts."""
    with log.open("rb") as file:
        return file.read(_MOST_LOG_BYTES).decode("utf-8", "replace")


def _measure_client(workload: Profile, transport: str, warmed: Records) -> None:
    """Let the client measure itself at the load to come, whose pace the warm-up tells; it is remembered."""
    from loadgen.selftest import Load, measure_client, table  # no other run pays for it

    pace = compute(warmed, asked(workload))
    load = Load.of(workload)
    if pace.itl.n:
        tokens = round(pace.total_output_tokens / pace.health.messages)
        load = Load.of(workload, max(pace.itl.mean_ms, _LEAST_INTERVAL_MS), max(tokens, 1))
    found = measure_client(load, [transport])
    calibration.remember(found.values())
    print("\n".join((f"self-test at {load.words}:", *table(found[transport]))), flush=True)


def roofline_flags(options: Options) -> Flags:
    """What the user says of machine and model."""
    return Flags(options.hardware, options.bandwidth, options.model_config)


def transport(options: Options) -> str:
    """The transport asked for, or the one that fits the platform; raises UsageError."""
    chosen = options.transport or DEFAULT_TRANSPORT
    if chosen == "wire" and DEFAULT_TRANSPORT != "wire":
        raise UsageError("--transport wire needs Linux (epoll): use --transport httpx here")
    return chosen
