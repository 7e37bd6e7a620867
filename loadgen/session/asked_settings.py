"""Asked settings: what the flags ask for of a server that is started, and of the roofline."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.errors import UsageError
from loadgen.roofline.flags import Flags
from loadgen.session.options import Options
from loadgen.workload.profile import Profile
from loadgen.workload.server_settings import FLAGS, ServerSettings, validated


def settings(options: Options, profiles: Sequence[Profile]) -> ServerSettings:
    """What a launched server is asked for: the profiles' [server] tables, the flags over them.

    Raises UsageError where two profiles want different servers.
    """
    wanted = [profile.server for profile in profiles if profile.server is not None]
    if any(other != wanted[0] for other in wanted):
        raise UsageError("the profiles' [server] tables differ: run them one by one")
    base = wanted[0] if wanted else ServerSettings()
    return base.overlaid(validated(ServerSettings, options.launching.settings, FLAGS))


def roofline_flags(options: Options) -> Flags:
    """The machine and model that the user named."""
    return Flags(options.hardware, options.bandwidth, options.model_config)
