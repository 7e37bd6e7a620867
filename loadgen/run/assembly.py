"""Assembly: what a command's settings add to a run: who sends, to which servers, what is learned after."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from loadgen.base.structs import replace
from loadgen.facts.run_facts import Facts
from loadgen.features.roofline.roofline_settings import Flags
from loadgen.plan.plan import Plan
from loadgen.plan.profile import has_images
from loadgen.plan.request_sources import ModelTarget
from loadgen.run.command.options import Options
from loadgen.run.command.progress import Display
from loadgen.run.extension import Extension, Step
from loadgen.run.firing import Outcome
from loadgen.server.exchange import ServerAddress


def find_extensions(options: Options) -> list[Extension]:
    """Find the parts in a run of the settings that a command gives; no other is imported."""
    found: list[Extension] = []
    if options.metrics_url:
        from loadgen.features.routed import role_scrapers

        found.append(role_scrapers.EXTENSION)
    if options.workers != 1:
        from loadgen.run import worker_count

        found.append(worker_count.EXTENSION)
    if options.export_requests is not None:
        from loadgen.features.data import export_plan

        found.append(export_plan.EXTENSION)
    if options.selftest:
        from loadgen.features.selftest import capacity

        found.append(capacity.EXTENSION)
    if options.power_url:
        from loadgen.features.sensors import power_urls

        found.append(power_urls.EXTENSION)
    if (options.shard, options.start_at, options.expect_plan) != (None, None, None):
        from loadgen.features.shards import shard_sender

        found.append(shard_sender.EXTENSION)
    if (options.cluster, options.shards) != (None, None):
        from loadgen.fleet import cluster_session

        found.append(cluster_session.EXTENSION)
    if (options.otel, options.prometheus, options.receive_spans) != (None, None, None):
        from loadgen.features.telemetry import telemetry_sender

        found.append(telemetry_sender.EXTENSION)
    return found


def list_steps(
    options: Options,
    server: tuple[ServerAddress, ModelTarget],
    learned: dict[str, Any],
    made: Plan,
    outcome: Outcome,
    display: Display,
) -> Iterator[tuple[str, Step]]:
    """Yield (name, step) that add to the facts what a run's settings have learned after the last request.

    `learned` is kept between the runs on a server. Of several shards only the first asks the server.
    """
    access, subject = server
    is_first = not options.share.number
    if has_images(made.profile) and is_first:
        from loadgen.features.images import image_probe

        yield from image_probe.list_steps(access, made, outcome, display)
    if made.sends_recorded:
        from loadgen.features.data import sent_texts

        yield from sent_texts.list_steps(subject, Path(options.run_dir or "runs"), made, outcome)
    from loadgen.features.roofline import estimate
    from loadgen.features.selftest import kept_selftests

    yield "the last self-test", kept_selftests.add_calibration
    if options.fingerprint and is_first:
        from loadgen.features.quality import greedy_prompts

        def add_fingerprint(known: Facts) -> Facts:
            answers = greedy_prompts.take_fingerprint(server, learned, made, outcome, display)
            return replace(known, fingerprint=answers)

        yield "the fingerprint", add_fingerprint
    yield "the roofline", partial(estimate.add_ceiling, flags=Flags.read(options))
