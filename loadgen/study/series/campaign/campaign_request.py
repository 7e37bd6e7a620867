"""Campaign request: a campaign as its file and the command line have it, before anything starts."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from loadgen.base.clock import read_wall_clock
from loadgen.base.errors import UsageError
from loadgen.features.sensors import sensor_discovery
from loadgen.run.command import progress
from loadgen.run.command.credentials import read_api_key
from loadgen.study.series.campaign import arms, campaign_store
from loadgen.study.series.campaign.arms import ONCE, Arm, Start, Trust
from loadgen.study.series.campaign.campaign_file import CampaignFile, load_campaign, locate_campaign
from loadgen.study.series.campaign.campaign_store import CampaignStore
from loadgen.study.series.campaign.machine_watch import MachineWatch, is_measured_here
from loadgen.study.series.campaign.quality_cells import find_reference


class CampaignRequest(msgspec.Struct, frozen=True):
    """A campaign as the command line and its file have it."""

    path: Path
    trust: Trust
    file: CampaignFile
    every: tuple[Arm, ...]  # of the file
    arms: tuple[Arm, ...]  # those of --only
    starts: tuple[Start, ...]
    reference: Arm | None = None  # of the quality, which may be none of `arms`; None: no quality


def make_request(given: argparse.Namespace, kept: CampaignStore | None) -> CampaignRequest:
    """Read and check the campaign of FILE, or of the file in the record of `kept`, without starting anything.

    --repeats replaces the file's, --only selects the arms. Raises UsageError.
    """
    known = given.file is None and kept is not None
    path = Path(kept.record.file) if known and kept is not None else locate_campaign(given.file)
    if given.file is None and not path.is_file():
        raise UsageError(f"{path}, the file of this campaign, is gone: give its new path")
    campaign = load_campaign(path)
    if given.repeats is not None:
        if not 1 <= given.repeats <= 1000:
            raise UsageError(f"--repeats {given.repeats}: give 1 or more")
        campaign = campaign.model_copy(update={"repeats": given.repeats})
    only = [] if given.only is None else [name.strip() for name in given.only.split(",")]
    trust = read_trust(given).apply_to(path)
    every = arms.make_arms(campaign, path, trust)
    chosen = arms.choose_arms(every, only, path)
    reference = find_reference(campaign, every)
    return CampaignRequest(path, trust, campaign, every, chosen, plan_starts(campaign, chosen), reference)


def read_trust(given: argparse.Namespace) -> Trust:
    """Read what the command line lets the file do; raises UsageError for a bad variable name or API key."""
    for name in given.allow_env:
        if not re.fullmatch(r"\w+", name):
            raise UsageError(f"--allow-env {name!r}: give the name of one variable")
    if given.api_key_env or given.api_key_file:
        read_api_key(given.api_key_env, given.api_key_file)
    return Trust(given.allow_launch, tuple(given.allow_env), given.api_key_env, given.api_key_file)


def plan_starts(campaign: CampaignFile, chosen: tuple[Arm, ...]) -> tuple[Start, ...]:
    """Plan the starts of the chosen arms with the campaign's repeats, once per arm with `starts = "once"`."""
    return arms.plan_starts(campaign.name, chosen, campaign.repeats, campaign.starts == ONCE)


def make_record(wanted: CampaignRequest) -> campaign_store.CampaignRecord:
    """Make the campaign's record, dated now, of every cell in the file, also those that --only leaves out."""
    starts, now = plan_starts(wanted.file, wanted.every), read_wall_clock()
    return campaign_store.make_record(wanted.file, wanted.path, wanted.every, starts, now)


def make_watch(
    wanted: CampaignRequest, kept: CampaignStore, given: argparse.Namespace, say: Callable[[str], None]
) -> MachineWatch | None:
    """Make the watch over this machine; None if the file has no `cool_down` and no arm is measured here."""
    cool = wanted.file.cool_down
    if cool is None and not any(is_measured_here(arm.options) for arm in wanted.arms):
        return None
    states = (kept.read_state_before(planned.id) for planned in arms.list_cells(wanted.starts))
    first = next((state for state in states if state is not None), None)
    sensors, shown = sensor_discovery.find_sensors(), progress.display(given.quiet)
    return MachineWatch(cool, sensors, say, shown, first, given.require_equal_state)
