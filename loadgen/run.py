"""Run: one profile against a server that was found ready: warmed up, watched and measured."""

from __future__ import annotations

import secrets
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from loadgen import calibration, host, live, plan, result
from loadgen.endpoint import Access, Served
from loadgen.environment import HIDDEN, command_line, describe
from loadgen.errors import LoadgenError, MeasureError, UsageError
from loadgen.facts import Client, Facts, Server, asked
from loadgen.flags import Options
from loadgen.job import Target
from loadgen.live import Display
from loadgen.measure import Manner, Outcome, measure
from loadgen.metrics import compute
from loadgen.observe import Observer
from loadgen.plan import Plan, Seed, Subject
from loadgen.portable import is_loopback
from loadgen.profile import Profile
from loadgen.record import Records
from loadgen.result import Result
from loadgen.runner import DEFAULT_TRANSPORT
from loadgen.window import ServerWindow

_LEAST_INTERVAL_MS = 0.5  # of the self-test's messages: one process writes them all
_REST_S = 3.0  # at most, for a server to be done with the warm-up


@dataclass(frozen=True)
class Session:
    """A server found ready, and what every profile of a command shares."""

    options: Options
    access: Access
    served: Served
    subject: Subject
    root: Target

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
        warmed = self._warm_up(made, manner, display)
        if self.options.selftest:
            _measure_client(made.profile, manner.transport, warmed)
        before = host.snapshot() if is_loopback(self.root.host) else None
        outcome, window = self._watched(made, manner, display, rest_s=_REST_S if len(warmed) else 0.0)
        throttled = host.throttled(before, host.snapshot()) if before is not None else ()
        known = self._facts(made, outcome, started)
        learned = {
            "warmups": len(warmed),
            "warmup_failures": int((~warmed.ok).sum()),
            "throttled": throttled,
            "window": window,
            "calibration": calibration.remembered(
                manner.transport, calibration.environment_digest(known.environment)
            ),
        }
        return Result(known.model_copy(update=learned), outcome.records)

    def _watched(
        self, made: Plan, manner: Manner, display: Display, rest_s: float
    ) -> tuple[Outcome, ServerWindow | None]:
        """The measured run, the server's own counters read before, during and after it."""
        title = made.profile.name or "bench"
        if not self.options.observe:
            return measure(made, manner, display, title, nullcontext()), None
        observer = Observer(self.access, self.root.tls, self.served.model)
        observer.before(rest_s)
        outcome = measure(made, manner, display, title, observer.sampling())
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
            first = failures[0]
            raise MeasureError(f"every warm-up request failed, the first with {first.kind}: {first.detail}")
        return outcome.records

    def _facts(self, made: Plan, outcome: Outcome, started: datetime) -> Facts:
        health = outcome.health
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
            environment=describe(),
            notes=made.notes,
            cut_short=outcome.cut_short,
            interrupted=outcome.interrupted,
            label=self.options.label,
            metadata=self.options.metadata,
            requests=max(1, len(outcome.records) if made.total is None else made.total),
            repeated_prompts=plan.repeated_prompts(made),
        )

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


def transport(options: Options) -> str:
    """The transport asked for, or the one that fits the platform; raises UsageError."""
    chosen = options.transport or DEFAULT_TRANSPORT
    if chosen == "wire" and DEFAULT_TRANSPORT != "wire":
        raise UsageError("--transport wire needs Linux (epoll): use --transport httpx here")
    return chosen
