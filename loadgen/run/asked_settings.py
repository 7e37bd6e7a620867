"""Asked settings: what the flags ask for of a server that is started, and of the roofline."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.base.errors import UsageError
from loadgen.engines.engines import ENGINES
from loadgen.plan import request_sources
from loadgen.plan.profile import Profile
from loadgen.roofline.flags import Flags
from loadgen.run.options import Options
from loadgen.settings.validation import FLAGS, ServerSettings, validate_table

_SHARED_OUT = [engine.launch_name for engine in ENGINES if engine.shares_context]
_MOST_SLOTS = 256  # llama.cpp's LLAMA_MAX_SEQ
_ROUND, _TEMPLATE = 256, 256  # tokens: what such a context is a multiple of, and room for a chat template's


def settings(options: Options, profiles: Sequence[Profile]) -> ServerSettings:
    """What a launched server is asked for: the profiles' [server] tables, the flags over them.

    Raises UsageError where two profiles want different servers.
    """
    wanted = [profile.server for profile in profiles if profile.server is not None]
    if any(other != wanted[0] for other in wanted):
        raise UsageError("the profiles' [server] tables differ: run them one by one")
    base = wanted[0] if wanted else ServerSettings()
    given = base.overlaid(validate_table(ServerSettings, options.launching.settings, FLAGS))
    return _with_room(given, profiles) if options.launching.engine in _SHARED_OUT else given


def roofline_flags(options: Options) -> Flags:
    """The machine and model that the user named."""
    return Flags(options.hardware, options.bandwidth, options.model_config)


def _with_room(given: ServerSettings, profiles: Sequence[Profile]) -> ServerSettings:
    """The settings with room for as many requests at once as the profiles send, each of its whole length.

    What is not known before the run is left to the engine.
    """
    limits = [profile.max_concurrency for profile in profiles]
    running = given.max_running
    if running is None and (known := [limit for limit in limits if limit]) and len(known) == len(limits):
        running = min(max(known), _MOST_SLOTS)
    lengths = [_longest(profile) for profile in profiles]
    room = None
    if running is not None and running > 1 and all(lengths):  # a single one has all of the engine's own
        room = max(length + _TEMPLATE for length in lengths if length)
        room = -(-room // _ROUND) * _ROUND
    update = {"max_running": running, "context_len": given.context_len or room}
    return given.model_copy(update=update)


def _longest(profile: Profile) -> int | None:
    """Tokens of a profile's longest request; None where more than its lengths decide that."""
    if (
        request_sources.find_source(profile) != request_sources.RANDOM
        or profile.classes
        or profile.input_dist
        or profile.output_dist
    ):
        return None
    from loadgen.plan.prompts.random_ids import RANGE_RULES, parse_range_ratio  # few need it

    input_ratio, output_ratio = parse_range_ratio(profile.range_ratio, profile.compat)
    bounds = RANGE_RULES[profile.compat].bounds
    _, most_input = bounds(max(profile.ladder or (profile.input_len,)), input_ratio)
    return profile.prefix_len + most_input + bounds(profile.output_len, output_ratio)[1]
