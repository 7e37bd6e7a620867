"""Extension: where features take part in a run: checks of their settings, who sends, and several servers.

Each class here does what a plain run does; a feature's module has one that does more.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from loadgen.base.signals import Interrupts
from loadgen.base.structs import replace
from loadgen.facts.run_facts import Facts
from loadgen.plan.plan import Plan
from loadgen.plan.request_sources import WordCounts
from loadgen.records.record import Records
from loadgen.run.acceptance import Adapter
from loadgen.run.command.options import Options
from loadgen.run.command.progress import Display
from loadgen.run.firing import Outcome, TransportOptions, Watch
from loadgen.run.measurement import measure
from loadgen.server.control import ServerInfo
from loadgen.server.exchange import ServerAddress
from loadgen.server.scraper import MetricsScraper
from loadgen.transport.sending.job import Target

Step = Callable[[Facts], Facts]  # from the facts so far to those with what it adds


class PlanSender:
    """The sender of a plan; this one sends all of it from this machine, at once."""

    def describe(self, known: Facts, made: Plan) -> Facts:
        """Return the facts with what is known of the sender before the first request."""
        return known

    def wait(self, made: Plan, rest_s: float, display: Display) -> None:
        """Wait until only `rest_s` seconds are left before connections must be opened."""

    def send(self, made: Plan, options: TransportOptions, watch: Watch) -> Outcome:
        """Send the plan and return its outcome."""
        return measure(made, options, watch)

    def list_steps(self) -> tuple[tuple[str, Step], ...]:
        """List (name, step) that add to the facts what is learned about the sender after the last request."""
        return ()


# From the session's options, its server, and how that counts words.
SenderMaker = Callable[[Options, ServerAddress, dict[str, WordCounts]], PlanSender]

SenderWrapper = Callable[[PlanSender], PlanSender]


class Extension:
    """A feature's part in a run, active where a command gives one of its settings."""

    def check(self, options: Options) -> None:
        """Raise UsageError for options that contradict each other."""

    def check_runs(self, options: Options, runs: int) -> None:
        """Raise UsageError if options need a single run and the command makes several."""

    def arrange_sending(self, options: Options, made: Plan, sent: TransportOptions) -> TransportOptions:
        """Return the options of how a plan is sent, changed by the feature; raises UsageError."""
        return sent

    def adjust_to_warmup(
        self, options: Options, made: Plan, sent: TransportOptions, warmed: Records, display: Display
    ) -> TransportOptions:
        """Return how a plan is sent, adjusted to what its warm-up showed; raises MeasureError."""
        return sent

    def review_plan(self, made: Plan, options: Options, tokenizer: str | None) -> None:
        """Show or check a plan before it is sent; raises UsageError."""

    def begin_sender(self, options: Options, stack: ExitStack, interrupts: Interrupts) -> SenderMaker | None:
        """Start what sends the plan, before the server; return the sender's maker, None to send as always."""
        return None

    def join_servers(self, options: Options, servers: ServerGroup, access: ServerAddress) -> ServerGroup:
        """Return the servers of a run with those that the feature adds; raises MeasureError."""
        return servers

    def begin_companion(self, options: Options, stack: ExitStack) -> SenderWrapper | None:
        """Start what accompanies the sending, before the server; return what wraps the sender, None: nothing.

        What is started ends with `stack`. Raises UsageError.
        """
        return None


class ServerGroup:
    """The servers of a run; this one is a single server, a feature shares requests among several."""

    have_known_metrics = False  # at places that were given, whatever engine answers the requests

    def list_roots(self, root: Target) -> tuple[Target, ...]:
        """List each server's target, without a path."""
        return (root,)

    def change_headers(self, change: Callable[[ServerAddress], ServerAddress]) -> ServerGroup:
        """Return the group with the headers of its further servers changed."""
        return self

    def warm_up(
        self, adapter: Adapter, made: Plan, options: TransportOptions, display: Display
    ) -> tuple[Plan, Records]:
        """Warm up all servers; return the plan as they take it and the records; raises MeasureError."""
        return adapter.warm_up(made, replace(options, targets=()), display)

    def reset_caches(self, outcome: str) -> str:
        """Empty the other servers' prefix caches; return the joint outcome, given the first's."""
        return outcome

    def make_scraper(self, first: MetricsScraper) -> MetricsScraper:
        """Make a scraper of all servers' counters from that of the first."""
        return first

    def describe(self, known: Facts, served: ServerInfo, access: ServerAddress) -> Facts:
        """Return the facts, with the addresses of the servers if they are several."""
        return known
