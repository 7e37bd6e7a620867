"""Session: a server that is ready, and the runs on it: warmed up, observed, measured and kept.

What only the results of a run need is imported once it has been measured: its first request comes sooner.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from loadgen.base import files, signals
from loadgen.base.clock import read_wall_clock
from loadgen.base.errors import LoadgenError
from loadgen.base.imports import importing
from loadgen.base.secrecy import HIDDEN, Secrets, hide_argument_secrets
from loadgen.base.signals import Interrupts
from loadgen.base.structs import replace
from loadgen.base.urls import is_loopback
from loadgen.engines.engine import METRICS_PATH
from loadgen.engines.refusals import Adaptation
from loadgen.facts import run_facts
from loadgen.facts.run_facts import Cell, Client, Facts, Server
from loadgen.host import environment
from loadgen.plan import plan
from loadgen.plan.plan import Plan, count_repeated_prompts
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import ModelTarget, Seed, WordCounts
from loadgen.records import text_tokens
from loadgen.records.journal import JOURNAL, Journal
from loadgen.records.record import Records
from loadgen.records.text_tokens import TextTokenizer
from loadgen.run import assembly, prompt_counts, transport_choice, worker_count
from loadgen.run.acceptance import Adapter, check_sendable
from loadgen.run.command import progress
from loadgen.run.command.credentials import collect_credentials
from loadgen.run.command.options import Options
from loadgen.run.command.progress import Display
from loadgen.run.firing import Outcome, PlanPart, TransportOptions, Watch
from loadgen.run.live_display import choose_display
from loadgen.run.measurement import PlanSender, measure
from loadgen.run.observation import Local, Observation, make_cpu_watch
from loadgen.run.server_group import ServerGroup
from loadgen.run.stop_rules import make_stop_rules
from loadgen.run.transport_choice import add_path
from loadgen.server import control
from loadgen.server.checkpoint import Checkpoint
from loadgen.server.control import EMPTIED, ServerInfo
from loadgen.server.exchange import ServerAddress
from loadgen.server.prometheus import MetricLines
from loadgen.server.scraper import MetricsScraper
from loadgen.settings.run_settings import SendOptions
from loadgen.transport.capture_process import reap_ended
from loadgen.transport.sending.job import Target

if TYPE_CHECKING:
    from loadgen.report.run_directory import Result
    from loadgen.run.followup import FinishedRun

_LOG = logging.getLogger("loadgen")
_FAILED_S = 10.0  # for a server that failed to end: SGLang's takes five seconds to notice itself
_REST_S = 3.0  # at most, for a server to be done with the warm-up
_SENDING = [field.name for field in fields(SendOptions)]
PARTED = "parted by a salt of this run's"
MAY_KNOW = "may know these prompts from an earlier run: {}"


class Session(msgspec.Struct, frozen=True):
    """A server found ready, and what all runs on it share."""

    options: Options
    access: ServerAddress
    served: ServerInfo
    subject: ModelTarget
    root: Target
    local: Local | None = None  # None: the server is on another machine
    checkpoint: Checkpoint | None = None  # what the model's files declare, where they are on this machine
    servers: ServerGroup = ServerGroup()  # this one, and others that share its requests
    sender: PlanSender | None = None  # None: what `measure` does is all
    accepted: Adaptation | None = None  # what this server takes, where that is known and it is warm
    # Features keep what they learned for later runs, by name; sessions made by `replace` share it.
    learned: dict[str, Any] = msgspec.field(default_factory=dict)
    # Parts of a plan's requests that this server refuses, by what `adapting` tells apart; shared too.
    adaptations: dict[str, Adaptation] = msgspec.field(default_factory=dict)
    word_counts: dict[str, WordCounts] = msgspec.field(default_factory=dict)  # see `counting`; shared too
    cell: Cell | None = None  # of a campaign, whose runs these are
    read_commit: Callable[[], str] = str  # that we run from; "": unknown
    # The words by which the runs can be made again.
    command: list[str] = msgspec.field(default_factory=hide_argument_secrets)
    heading: str = ""  # where a run stands in a series, for its display: `3/12 `
    interrupts: Interrupts = signals.SIGNALS

    def check_alive(self, failed: bool) -> None:
        """Raise ServerDied if a server started here has ended, or, after a failure, ends within 10 s."""
        if self.local is not None:
            self.local.check_alive(_FAILED_S if failed else 0.0)

    def hide_error(self, error: LoadgenError) -> LoadgenError:
        """Return a new error of the same type, its texts without this session's secrets."""
        return type(error)(*(self.access.secrets.hide(str(part)) for part in error.args))

    @property
    def context_limit(self) -> int:
        """Tokens of the longest request that the server or the model's files allow; 0: unknown."""
        declared = self.checkpoint.max_positions if self.checkpoint is not None else None
        return self.served.max_model_len or declared or 0

    @property
    def adapter(self) -> Adapter:
        """A new Adapter, which learns which fields this server refuses, into `adaptations`."""
        known, alive, title = self.adaptations, self.check_alive, f"{self._simulated}warming up"
        quiet = self.options.quiet
        return Adapter(self.access, self.subject, known, alive, self.interrupts, title, quiet, self.accepted)

    def keep(
        self, run: Result, directory: Path, explain: bool = False, layout: str | None = None
    ) -> FinishedRun:
        """Write a run's directory: arrivals, report, a launched server's log, and last the result.

        It raises nothing for what cannot be written or made: that is among the errors. The journal is removed
        once it is written elsewhere; a signal waits for that, a second one does not.
        """
        from loadgen.run import followup  # only a run that has ended needs it

        return followup.write_run(
            run, directory, self.options, self.local, self.access.secrets, self.interrupts, explain, layout
        )

    def show_first(self, workload: Profile, seed: Seed) -> str:
        """Return a profile's first request as sent, head and body, with secrets and header values hidden."""
        session = self._fit_api(workload)
        made = plan.make(workload, session._count_words(workload, seed).subject, seed)
        if _may_be_known(made) and not (self.options.reset_cache or self._empties_own_cache):
            made = session._add_salt(made) or made
        hidden, body = self._collect_secrets(workload), made.body(0)
        target = add_path(session.root, made)
        headless = replace(target, headers=tuple((name, HIDDEN) for name, _ in target.headers))
        head = headless.make_head(len(body), (("x-request-id", f"{self._request_id_prefix()}0"),))
        fields = json.loads(body)
        masked = hidden.mask(fields)
        # The text is what is sent, to the byte, unless it holds a secret: 0.70 in a file is 0.70 here.
        shown = json.dumps(masked, ensure_ascii=False, separators=(",", ":"))
        shown = body.decode() if masked == fields else shown
        return hidden.conceal(head.decode("latin-1").replace("\r\n", "\n")) + shown

    def _collect_secrets(self, workload: Profile) -> Secrets:
        """Collect the secrets of the command, and those in the profile's extra body."""
        return self.access.secrets | Secrets.collect(
            tables=(workload.extra_body, workload.chat_template_kwargs)
        )

    def run(self, workload: Profile, seed: Seed) -> tuple[Result, Path]:
        """Measure one profile; return its result, and the directory with its journal.

        Raises UsageError or MeasureError, without secrets, and leaves no directory if nothing was measured.
        """
        display = choose_display(self.options.quiet)
        hidden = self._collect_secrets(workload)
        with hidden.hide_in_errors():
            fit = self._fit_api(workload)
            session = replace(fit, access=replace(fit.access, secrets=hidden))._count_words(workload, seed)
            made = session._make_plan(workload, seed, display)
            with session._keep_journal(made, display) as (directory, started, journal):
                sent = session.make_transport_options(made)
                made, parted = session._part_cache(made, display)
                observed = session._start_sensors(display)
                warming = sent.make_warm_up(made.profile.warmups)
                made, warmed = session.servers.warm_up(session.adapter, made, warming, display)
                sent = assembly.adjust_to_warmup(session.options, made, sent, warmed, display)
                subject = session.subject
                tokenizer: TextTokenizer | None = None
                if not subject.engine.simulated:  # to count what the server does not
                    names = (subject.tokenizer, subject.model_root, subject.model)
                    tokenizer = text_tokens.find_text_tokenizer(names)
                known = session._collect_facts(made, sent, started, observed, warmed, parted, tokenizer)
                journal.put_facts(known.encode())
                rest_s = _REST_S if len(warmed) else 0.0
                with session._observe(made, observed, rest_s, journal, tokenizer, display) as watch:
                    if session.sender is None:
                        outcome = measure(made, sent, watch)
                    else:
                        outcome = session.sender.send(made, sent, watch)
                    # Raised inside pydantic's builder, a signal would become an error of its own.
                    with signals.defer_stop(session.interrupts) as came, importing():
                        from loadgen.run import followup
                    if came:
                        signals.stop(came[0])
                    known = session._mask(followup.add_outcome(known, outcome, journal.error, made))
                    journal.put_facts(known.encode())
                    journal.finish()
                return session._follow_up(known, made, outcome, observed, display), directory

    def _fit_api(self, workload: Profile) -> Session:
        """Return the session with the headers of a profile's API, and the key as that has it."""
        own = plan.list_api_headers(workload.backend, self.options.endpoint, self.options.base_url)
        if own == self.options.api_headers:
            return self
        options, started = replace(self.options, api_headers=own), self.options.base_url is None

        def change(access: ServerAddress) -> ServerAddress:
            headers = collect_credentials(replace(options, base_url=access.base_url), started).headers
            return replace(access, headers=headers)

        access = change(self.access)
        root = replace(self.root, headers=tuple(access.headers.items()))
        servers = self.servers.change_headers(change)
        return replace(self, options=options, access=access, root=root, servers=servers)

    def _count_words(self, workload: Profile, seed: Seed) -> Session:
        """Return the session, with the server's count of words if prompts need it; raises MeasureError."""
        if not plan.is_counted_by_server(workload, self.subject):
            return self
        known, limit = self.word_counts, self.context_limit
        return replace(
            self, subject=prompt_counts.add_word_counts(self.adapter, known, workload, seed, limit)
        )

    def _make_plan(self, workload: Profile, seed: Seed, display: Display) -> Plan:
        """Make a profile's plan, and check that the server takes it; raises UsageError and MeasureError."""
        with display.waiting("making the prompts"):
            made = plan.make(workload, self.subject, seed)
            started = None if self.local is None else self.local.launched
            context = 0 if started is None else started.settings.context_len or 0
            check_sendable(made, self.served, context)
        assembly.review_plan(self.options, made, self.subject.tokenizer)
        return made

    @contextmanager
    def _keep_journal(self, made: Plan, display: Display) -> Iterator[tuple[Path, datetime, Journal]]:
        """Make a new directory with a journal; yield it, when that was, and the journal.

        An exception passes: with a warning that names the directory if a request was measured, else without
        directory.
        """
        started = read_wall_clock()
        base, share = Path(self.options.run_dir or "runs"), self.options.share
        part = "" if self.options.shard is None else f"-shard-{share.number}-of-{share.of}"
        directory = files.create_directory(base, f"{made.profile.name or 'bench'}{part}", started)
        journal = Journal(directory / JOURNAL, _LOG.warning)
        try:
            yield directory, started, journal
        except BaseException:
            # The error goes on, but what was measured is on disk, and the user must know.
            if journal.requests:
                _LOG.warning(
                    "%d requests were measured: loadgen report %s shows them", journal.requests, directory
                )
            else:
                journal.remove()
                files.remove_empty(directory)
            raise
        finally:
            reap_ended()
            journal.close()
            display.close()

    @contextmanager
    def _observe(
        self,
        made: Plan,
        observed: Observation,
        rest_s: float,
        journal: Journal,
        tokenizer: TextTokenizer | None,
        display: Display,
    ) -> Iterator[Watch]:
        """Begin to sample server and machine, and yield what accompanies the sending of a plan.

        What is sampled becomes part of `observed`. The server may take `rest_s` to be done with the warm-up.
        """
        if is_loopback(self.root.host):
            observed.throttling = environment.read_throttling_state()
        if self.sender is not None:  # what others sent before is not to be in the counters
            self.sender.wait(made, _REST_S, display)
        observed.counters = self._begin_scraping(rest_s, display)
        observed.cpus = make_cpu_watch(self.local, embedded=self.options.embedded)
        rules, traces = make_stop_rules(self.options, made), self.options.launching.trace_directory
        with ExitStack() as stack:
            if traces is not None:
                tracing = control.trace_server(self.access, self.served.engine, traces)
                observed.trace = stack.enter_context(tracing)
            cell = "" if self.cell is None else f"r{self.cell.repeat} {self.cell.arm}, "
            shard = "" if self.options.shard is None else f"shard {self.options.share.name} of "
            name = made.profile.name or Path(made.facts.file).name or "bench"
            watch = Watch(
                display,
                f"{self._simulated}{cell}{self.heading}{shard}{name}",
                observed.sample(),
                journal,
                rules,
                self.interrupts,
                tokenizer,
                progress.open_live_totals(self.options.live_totals),
                reaps=False,
            )
            if observed.counters is not None:
                watch = replace(watch, waiting=observed.counters.count_waiting)
            yield watch
            if traces is not None:
                with display.waiting("until the engine has written its trace"):
                    stack.close()

    def _follow_up(
        self, known: Facts, made: Plan, outcome: Outcome, observed: Observation, display: Display
    ) -> Result:
        """Add to the facts what was sampled in the run and is learned after it, and return the result.

        The measurement is on disk, and nothing that fails costs more than its own part.
        """
        from loadgen.report.run_directory import Result
        from loadgen.run import followup

        access = self.access if self.observes else None
        steps: tuple[tuple[str, Callable[[Facts], Facts]], ...] = (
            *observed.list_steps(outcome, display, _import_results),
            *(() if self.sender is None else self.sender.list_steps()),
            (
                "the engine's configuration",
                lambda facts: followup.add_configuration(facts, access, self.served, self.local),
            ),
            *assembly.list_steps(
                self.options, (self.access, self.subject), self.learned, made, outcome, display
            ),
        )
        facts = self._mask(followup.follow_up(known, steps))
        return Result(facts, outcome.records, followup.keep_samples(facts, observed))

    def _start_sensors(self, display: Display) -> Observation:
        """Find this machine's sensors and those of --power-url, and sample idle power.

        Nothing of a simulated or unobserved server, and of a remote one without the flag.
        """
        known = self.local is not None or self.options.power_url
        if not (self.observes and known) or self.served.engine.simulated:
            return Observation()
        from loadgen.features.sensors import sensor_discovery  # few runs have a server with sensors

        sensors = sensor_discovery.start_sensors(self.local, self.options, display)
        state = None if sensors is None else sensors.read_state(self.options.probe_memory)
        return Observation(sensors, state)

    def _mask(self, facts: Facts) -> Facts:
        """Return the facts without secrets, since they are written to disk."""
        return run_facts.mask_texts(facts, self.access.secrets.mask)

    @property
    def _simulated(self) -> str:
        """The prefix of a display's titles if no model runs; else ""."""
        return "SIMULATED " if self.served.engine.simulated else ""

    @property
    def observes(self) -> bool:
        """Whether to sample server and machine: unless switched off, in the first of several shards alone."""
        return self.options.observe and not self.options.share.number

    def _part_cache(self, made: Plan, display: Display) -> tuple[Plan, str]:
        """Keep the servers' prefix caches from knowing a plan's prompts; return the plan to send, and how.

        They are emptied where it is requested (of the first shard), or the server was started here and its
        engine can. Else prompts that an earlier run may have sent get a salt of this run's, or the caches are
        emptied; but not those that the user has sent again by --seed. "": nothing was done.
        """
        first = not self.options.share.number  # of the shards, which empties for all
        outcome = ""
        with display.waiting("emptying the server's prefix cache"):
            if (self.options.reset_cache and first) or self._empties_own_cache:
                outcome = self._reset_caches()
            if outcome == EMPTIED or not _may_be_known(made):
                return made, outcome
            if salted := self._add_salt(made):
                return salted, PARTED
            outcome = outcome or (self._reset_caches() if first else "")
            return made, outcome if outcome in ("", EMPTIED) else MAY_KNOW.format(outcome)

    @property
    def _empties_own_cache(self) -> bool:
        """Whether the server was started here, and can empty its prefix cache."""
        ours = self.local is not None and self.local.launched is not None
        return ours and bool(self.served.engine.reset_path)

    def _add_salt(self, made: Plan) -> Plan | None:
        """Return the plan with a salt of its run's in each request; None where the server takes none."""
        engine = self.served.engine
        if not engine.salt_field or (engine.unsalted and re.match(engine.unsalted, self.served.version)):
            return None
        return replace(made, salt={engine.salt_field: made.seed.make_salt(made.profile.name)})

    def _reset_caches(self) -> str:
        """Empty the prefix cache of every server; return EMPTIED, or what went wrong and where."""
        return self.servers.reset_caches(control.reset_cache(self.access, self.served.engine) or EMPTIED)

    def _begin_scraping(self, rest_s: float, display: Display) -> MetricsScraper | None:
        """Return the scraper of the servers' counters, after a scrape once idle, or in `rest_s` seconds.

        None if unobserved, hosted, or unproven without metrics, unless it was given where they are.
        """
        engine, known = self.served.engine, self.servers.scrape_elsewhere is not None
        if not self.observes or (engine.hosted and not known):
            return None
        path = METRICS_PATH if engine.metrics is None else engine.metrics.path
        first = MetricsScraper(self.access, self.served.model, path)
        if engine.no_metrics and not known:
            first.begin(MetricLines(error=engine.no_metrics))
            return first
        observer = self.servers.make_scraper(first)
        with display.waiting("settling: until the server is idle", rest_s):
            error = observer.scrape_before(rest_s, _import_results)
        if error and engine.unproven and engine.metrics is None and not known:
            return None  # nothing says that it should have /metrics
        if self.local is not None:
            self.local.pids()  # searching for them is cheaper while there are few connections
        return observer

    def _request_id_prefix(self) -> str:
        """Choose the prefix of x-request-id: as given, else one drawn at random."""
        given = self.options.request_id_prefix
        return f"loadgen-{secrets.token_hex(4)}-" if given is None else given

    def make_transport_options(self, made: Plan) -> TransportOptions:
        """Return how a plan's requests are sent; raises UsageError, or warns, about local addresses."""
        options = self.options
        targets = tuple(add_path(root, made) for root in self.servers.list_roots(self.root))
        chosen, targets = transport_choice.choose_for_plan(options, targets, made, _LOG.warning)
        sent = TransportOptions(
            target=targets[0],
            targets=targets if len(targets) > 1 else (),
            transport=chosen.name,
            why_transport=chosen.why,
            http2=options.http2,
            request_id_prefix=self._request_id_prefix(),
            sending=SendOptions(**{name: getattr(options, name) for name in _SENDING}),
            keep_text=options.save_detailed,
            hide=self.access.secrets.hide,
            gone=self.local.gone if self.local is not None else lambda: False,
            server_pids=self.local.pids if self.local is not None else tuple,
            part=PlanPart(self.options.share),
        )
        if options.workers == 1:
            return sent
        return worker_count.spread_over_workers(sent, made, options.workers)

    def _collect_facts(
        self,
        made: Plan,
        options: TransportOptions,
        started: datetime,
        observed: Observation,
        warmed: Records,
        parted: str,
        tokenizer: TextTokenizer | None,
    ) -> Facts:
        """Collect the facts known before the measured run's first request, without secrets."""
        local, served = self.local, self.served
        if made.salt.keys() & made.adaptation.left_out:
            parted = MAY_KNOW.format("the server refuses a salt")
        # This machine and our own software; its GPUs too where the server is on it.
        sensed = observed.sensors.describe() if observed.sensors is not None else {}
        described = {**environment.describe_machine(), "git": self.read_commit(), **sensed}
        known = Facts(
            started=started,
            finished=started,
            command=self.command,
            profile=made.profile.model_copy(update={"server": None}),  # it may hold secrets
            seed=made.seed.value,
            seed_chosen=made.seed.chosen,
            repeat=made.seed.repeat,
            attempt=made.seed.attempt,
            plan_digest=made.digest(),
            prompt_format=made.requests.format,
            data=made.facts,
            ids_source=made.ids_source,
            server=Server(
                url=add_path(self.root, made).url,
                engine=served.engine.name,
                version=served.version,
                model=served.model,
                model_root=served.model_root,
                max_model_len=served.max_model_len,
                slots=served.slots,
                simulated=served.model_root if served.engine.simulated else "",
            ),
            client=Client(
                transport=options.transport,
                why=options.why_transport,
                workers=options.workers,
                why_workers=options.why_workers,
                cpus=options.cpu_words,
            ),
            environment={name: value for name, value in described.items() if value},
            adapted=made.adaptation.fields,
            notes=made.notes,
            requests=made.total or 1,
            session_turns=() if made.turns is None else tuple(made.turns.counts.tolist()),
            session_waits=None if made.turns is None else made.turns.describe_waits(),
            cancels=() if made.cancellations is None else made.cancellations.list_own(),
            repeated_prompts=count_repeated_prompts(made),
            runs=self.options.repeat,
            tokenizer=self.options.tokenizer or made.tokenizer or None,
            warmups=len(warmed),
            warmup_failures=int((~warmed.ok).sum()),
            ignore_eos_refused=made.refuses_ignore_eos(self.subject.engine),
            under_way=True,
            request_id_prefix=options.request_id_prefix,
            label=self.options.label,
            metadata=self.options.metadata,
            cell=self.cell,
            text_tokenizer=str(tokenizer.directory) if tokenizer is not None else "",
            launched=local.launched if local is not None else None,
            checkpoint=self.checkpoint,
            cache_reset=parted,
            gpus=self.options.gpus,
            state_before=observed.before,
        )
        # Facts are masked here, before anything reads them: a sender gives them to others while it sends.
        known = self._mask(self.servers.describe(known, self.served, self.access))
        return known if self.sender is None else self._mask(self.sender.describe(known, made))


def _may_be_known(made: Plan) -> bool:
    """Whether another run may have sent a plan's prompts, and none was to send them again, by its seed."""
    as_they_are = made.seed.chosen and made.seed.first
    return bool(made.seed.apart) or (made.sends_recorded and not as_they_are)


def _import_results() -> None:
    """Import the report's and the follow-up's modules, and find the facts' types, before they are needed."""
    with importing():
        import prometheus_client.parser  # noqa: F401

        import loadgen.report.report
        import loadgen.run.followup  # noqa: F401

        run_facts.find_fact_types()
