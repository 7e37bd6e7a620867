"""Extension: where features take part in a run: checks of their settings, who sends, and several servers.

Each class here does what a plain run does; a feature's module has one that does more.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module

from loadgen.base.signals import Interrupts
from loadgen.base.structs import replace
from loadgen.facts.run_facts import Facts
from loadgen.plan.plan import Plan
from loadgen.plan.plan_inputs import WordCounts
from loadgen.records.record import Records
from loadgen.run.acceptance import Adapter
from loadgen.run.command.options import TABLE, Options, is_given
from loadgen.run.command.progress import Display
from loadgen.run.firing import TransportOptions, Watch
from loadgen.run.measure import Outcome, measure
from loadgen.server.discovery import ServerAddress, ServerInfo
from loadgen.server.scraper import MetricsScraper
from loadgen.transport.sending.job import Target

Step = Callable[[Facts], Facts]  # from the facts so far to those with what it adds


class PlanSender:
    """This machine sends the whole of a plan, at once."""

    def describe(self, known: Facts, made: Plan) -> Facts:
        """The facts with what is known of the sender before the first request."""
        return known

    def wait(self, made: Plan, rest_s: float, display: Display) -> None:
        """Return when only that much time is left before connections are to be opened."""

    def send(self, made: Plan, options: TransportOptions, watch: Watch) -> Outcome:
        """Send the plan, and return its outcome."""
        return measure(made, options, watch)

    def list_steps(self) -> tuple[tuple[str, Step], ...]:
        """List what is learned of the sender after the last request, by name."""
        return ()


# From the session's options, its server, and how that counts words.
SenderMaker = Callable[[Options, ServerAddress, dict[str, WordCounts]], PlanSender]


class Extension:
    """A feature takes part where a command gives one of its settings."""

    def check(self, options: Options) -> None:
        """Raises UsageError of options that do not go together, wherever the command is to run."""

    def check_runs(self, options: Options, runs: int) -> None:
        """Raises UsageError of what goes with one run alone, where there are several."""

    def arrange_sending(self, options: Options, made: Plan, sent: TransportOptions) -> TransportOptions:
        """How a plan is sent otherwise; raises UsageError where it cannot be."""
        return sent

    def adjust_to_warmup(
        self, options: Options, made: Plan, sent: TransportOptions, warmed: Records, display: Display
    ) -> TransportOptions:
        """How a plan is sent once its warm-up has shown the server's pace."""
        return sent

    def show_plan(self, made: Plan, options: Options, tokenizer: str | None) -> None:
        """Show a plan before it is sent."""

    def begin_sender(self, options: Options, stack: ExitStack, interrupts: Interrupts) -> SenderMaker | None:
        """Reach what sends the plan, before the server is; None where this machine does as always."""
        return None


def find_extensions(options: Options) -> list[Extension]:
    """The extensions whose settings a command gives; no other is imported."""
    named = dict.fromkeys(row.extension for row in TABLE if row.extension and is_given(options, row))
    return [import_module(name).EXTENSION for name in named]


class ServerGroup:
    """The one server of a run; a feature has several of one model share its requests."""

    def list_roots(self, root: Target) -> tuple[Target, ...]:
        """Where requests go on each server, without a path."""
        return (root,)

    def warm_up(
        self, adapter: Adapter, made: Plan, options: TransportOptions, display: Display
    ) -> tuple[Plan, Records]:
        """The plan as the server takes it, and what came of the warm-up; raises MeasureError."""
        return adapter.warm_up(made, replace(options, targets=()), display)

    def reset_caches(self, outcome: str) -> str:
        """Empty the prefix caches of the others; the outcome of all, given that of the first."""
        return outcome

    def make_scraper(self, first: MetricsScraper) -> MetricsScraper:
        """Make what scrapes the counters of all servers."""
        return first

    def describe(self, known: Facts, served: ServerInfo, access: ServerAddress) -> Facts:
        """The facts with the addresses of several servers."""
        return known
