"""Assembly: what a command's settings add to a run: who sends, to which servers, what is learned after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from loadgen.base.errors import UsageError
from loadgen.base.signals import Interrupts
from loadgen.base.structs import replace
from loadgen.facts.run_facts import Facts
from loadgen.features.data import export_plan
from loadgen.features.images import image_probe
from loadgen.features.roofline.roofline_settings import Flags
from loadgen.features.routed import role_scrapers
from loadgen.features.selftest import capacity, kept_selftests
from loadgen.features.sensors import power_urls
from loadgen.features.shards import shard_sender
from loadgen.features.telemetry import telemetry_sender
from loadgen.plan.plan import Plan
from loadgen.plan.profile import has_images
from loadgen.plan.request_sources import ModelTarget, WordCounts
from loadgen.records.record import Records
from loadgen.run import worker_count
from loadgen.run.command.options import Options
from loadgen.run.command.progress import Display
from loadgen.run.firing import Outcome, TransportOptions
from loadgen.run.measurement import PlanSender
from loadgen.server.exchange import ServerAddress


def _is_shard(options: Options) -> bool:
    return (options.shard, options.start_at, options.expect_plan) != (None, None, None)


def _has_telemetry(options: Options) -> bool:
    return (options.otel, options.prometheus, options.receive_spans) != (None, None, None)


def check_options(options: Options) -> None:
    """Raise UsageError for options of a part that contradict each other, or need what is not installed."""
    if options.metrics_url:
        role_scrapers.check_options(options)
    if options.power_url and not options.observe:
        raise UsageError("--power-url samples power, and --no-observe samples nothing: leave out one")
    if _is_shard(options):
        shard_sender.check_options(options)
    if (options.cluster, options.shards) != (None, None):
        from loadgen.fleet import cluster_session

        cluster_session.check_options(options)
    if _has_telemetry(options):
        telemetry_sender.check_options(options)


def review_plan(options: Options, made: Plan, tokenizer: str | None) -> None:
    """Write a plan to a file, if asked to, and check what divides or accompanies it; raises UsageError."""
    if options.export_requests is not None:
        export_plan.export_and_print(made, options.export_requests, tokenizer)
    if _is_shard(options):
        shard_sender.check_divisible(made, options.share)
    if _has_telemetry(options):
        telemetry_sender.check_headers(options, made)


def adjust_to_warmup(
    options: Options, made: Plan, sent: TransportOptions, warmed: Records, display: Display
) -> TransportOptions:
    """Return how a plan is sent, by as many workers as its warm-up asks for, once the client is tested.

    Raises MeasureError if the plan is not the one of --expect-plan.
    """
    if options.workers != 1:
        sent = worker_count.adjust_to_warmup(options, made, sent, warmed, display)
    if options.selftest:
        with display.waiting("self-test of this client, against a null server", forks=True):
            capacity.measure_at_pace(made.profile, sent.transport, warmed, sent.workers)
    if options.expect_plan is not None:
        shard_sender.check_digest(made, options.expect_plan)
    return sent


# Takes a session's options, its server, and that one's word counts; None: this process sends, at once.
SenderMaker = Callable[[Options, ServerAddress, dict[str, WordCounts]], PlanSender | None]


def begin_sender(options: Options, stack: ExitStack, interrupts: Interrupts) -> SenderMaker:
    """Start what sends a plan or accompanies that, before the server; return what makes the sender.

    What is started ends with `stack`. Raises UsageError and MeasureError.
    """
    if options.power_url:
        power_urls.check_exporters(options)
    wrap = None
    places = None
    if _has_telemetry(options):
        wrap = telemetry_sender.begin_telemetry(options, stack)
    if options.cluster is not None and not options.print_request:
        from loadgen.fleet import cluster_session

        places = cluster_session.join_cluster(options, stack, interrupts)

    def make_sender(
        options: Options, access: ServerAddress, word_counts: dict[str, WordCounts]
    ) -> PlanSender | None:
        sender: PlanSender | None = None
        if places is not None:
            sender = cluster_session.ClusterSender(places, options, access, word_counts)
        elif _is_shard(options):
            sender = shard_sender.ShardSender(options, interrupts)
        return sender if wrap is None else wrap(sender or PlanSender())

    return make_sender


def list_steps(
    options: Options,
    server: tuple[ServerAddress, ModelTarget],
    learned: dict[str, Any],
    made: Plan,
    outcome: Outcome,
    display: Display,
) -> Iterator[tuple[str, Callable[[Facts], Facts]]]:
    """Yield (name, step) that add to the facts what a run's settings have learned after the last request.

    `learned` is kept between the runs on a server. Of several shards only the first asks the server.
    """
    access, subject = server
    is_first = not options.share.number
    if has_images(made.profile) and is_first:
        yield from image_probe.list_steps(access, made, outcome, display)
    if made.sends_recorded:
        from loadgen.features.data import sent_texts  # and the doubts of a run

        yield from sent_texts.list_steps(subject, Path(options.run_dir or "runs"), made, outcome)
    from loadgen.features.roofline import estimate  # its tables of machines and models take 25 ms

    yield "the last self-test", kept_selftests.add_calibration
    if options.fingerprint and is_first:
        from loadgen.features.fingerprint import greedy_prompts

        def add_fingerprint(known: Facts) -> Facts:
            answers = greedy_prompts.take_fingerprint(server, learned, made, outcome, display)
            return replace(known, fingerprint=answers)

        yield "the fingerprint", add_fingerprint
    yield "the roofline", partial(estimate.add_ceiling, flags=Flags.read(options))
