"""Reconciled roles: the run's one window, of what each server behind a router counted by its role.

With prefill and decode apart, both count every request: prompts are counted where they are computed, answers
where they are generated, and no count is the sum of the two.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial

import msgspec

from loadgen.base.rule import Evidence, Origin, Source, invalid, join_evidence
from loadgen.base.secrecy import hide_url_secrets
from loadgen.base.structs import replace
from loadgen.engines.engines import METRICS
from loadgen.server.prometheus import MetricsSnapshot, Series, has_restarted
from loadgen.server.scraper import sum_snapshots
from loadgen.server.server_counters import (
    DECODE,
    PREFILL,
    ROUTER,
    WORKER,
    Role,
    RoleWindow,
    ServerWindow,
    make_window,
)
from loadgen.verdict.evidence import RunEvidence, limit_doubts

_OF_PROMPTS = {"prompt_tokens", "computed_tokens", "prefix_queries", "prefix_hits", "queue", "prefill"}
_OF_ANSWERS = {
    "generation_tokens", "requests", "drafts", "draft_tokens", "accepted_tokens", "accepted_by_position",
    "accept_length", "itl", "decode",
}  # fmt: skip
_OF_BOTH = {"ttft", "e2e", "inference"}  # of a server that computes prompts and answers; any other: of all
Samples = Sequence[tuple[float, MetricsSnapshot]]


class MetricsUrl(msgspec.Struct, frozen=True):
    """One server's metrics: its role, a short name, its origin, and the path as given; "" leaves it open."""

    role: Role
    name: str
    origin: str
    path: str = ""

    @property
    def shown_url(self) -> str:
        """The URL without what its query may hold."""
        return hide_url_secrets(self.origin + self.path)

    @property
    def shown(self) -> str:
        """The role and URL for messages."""
        return f"{self.role}={self.shown_url}"


class RoleScrapes(msgspec.Struct, frozen=True):
    """The scrapes of one server: before the run, in it until its end, and the last that counts."""

    place: MetricsUrl
    before: MetricsSnapshot
    last: MetricsSnapshot
    settled: bool = True
    samples: Samples = ()  # by seconds
    ended_s: float | None = None  # as in RoleWindow
    ended_why: str = ""
    restarted: bool = False


def make_role_window(scrapes: RoleScrapes, model: str) -> tuple[RoleWindow, ServerWindow]:
    """Make what is stored of one server, and its window with samples, which become peaks in the former."""
    whole = make_window(scrapes.before, scrapes.last, scrapes.samples, model, scrapes.settled)
    stored = RoleWindow(
        role=scrapes.place.role,
        name=scrapes.place.name,
        url=scrapes.place.shown_url,
        window=whole.model_copy(update={"samples": ()}),
        peak_running=whole.peak("running"),
        peak_waiting=whole.peak("waiting"),
        peak_kv_cache_usage=whole.peak("kv_cache_usage"),
        ended_s=scrapes.ended_s,
        ended_why=scrapes.ended_why,
        counted_s=None
        if scrapes.ended_s is None
        else max((at_s for at_s, _ in scrapes.samples), default=0.0),
        restarted=scrapes.restarted,
    )
    return stored, whole


def reconcile_roles(every: Sequence[RoleScrapes], model: str = "") -> ServerWindow:
    """Sum the servers' counters, each quantity over the roles that it is counted at, to one window.

    A server that ended counts until its last scrape; the window is then not settled. If an engine could not
    be scraped, the window has only an error with its name. Routers count where there is nothing else. The
    names of metrics are those of an engine that generates.
    """
    engines = [each for each in every if each.place.role != ROUTER] or every
    for each in engines:
        if error := each.before.error or each.last.error:
            return ServerWindow(error=f"{each.place.role} {each.place.name}: {error}")
    roles = {each.place.role for each in engines}
    dropped = _find_partly_counted(engines, roles)
    leading = next((each for each in engines if each.place.role in (WORKER, DECODE)), engines[0])
    kept = [_select_quantities(each, roles, dropped, leading.last.names) for each in engines]
    before, after = (sum_snapshots([getattr(each, end) for each in kept]) for end in ("before", "last"))
    settled = all(each.settled and each.ended_s is None for each in kept)
    window = make_window(before, after, list(_join_samples(kept)), model, settled)
    by_role = (*_OF_PROMPTS, *_OF_ANSWERS, *_OF_BOTH)
    uncounted = dropped | {name for name in by_role if not _find_roles(name, roles) & roles}
    fields = ServerWindow.model_fields
    return window.model_copy(update={name: fields[name].default for name in uncounted & fields.keys()})


def count_by_role(every: Sequence[RoleWindow]) -> dict[str, int | None]:
    """Count prompt and generated tokens of a run from the servers' windows; None where one does not."""
    engines = [each for each in every if each.role != ROUTER] or every
    roles = {each.role for each in engines}
    counts = {}
    for quantity in ("prompt_tokens", "generation_tokens"):
        own = _find_roles(quantity, roles)
        values = [getattr(each.window, quantity) for each in engines if each.role in own]
        counts[quantity] = None if None in values or not values else sum(values)
    return counts


def _find_roles(quantity: str, roles: Set[str]) -> Set[str]:
    """Find the roles whose counts of a quantity are summed in a run with these `roles`; empty: none."""
    if roles == {ROUTER}:
        return roles if quantity == "requests" else frozenset()
    if quantity in _OF_PROMPTS:
        return {WORKER, PREFILL if PREFILL in roles else DECODE}
    if quantity in _OF_ANSWERS:
        return {WORKER, DECODE}
    if quantity in _OF_BOTH and roles != {WORKER}:
        return frozenset()
    return {WORKER, PREFILL, DECODE}


def _find_partly_counted(engines: Sequence[RoleScrapes], roles: Set[str]) -> set[str]:
    """Find the quantities that some engines count and others, of another kind, do not: no sum is whole."""
    counted: dict[str, set[str]] = {}
    for each in engines:
        own = counted.setdefault(each.last.names, set(METRICS[each.last.names].lazy))
        own |= {
            quantity for end in (each.before, each.last) for _, quantity, _ in (*end.counters, *end.gauges)
        }
    every = set[str]().union(*counted.values())
    return {
        quantity
        for each in engines
        for quantity in every - counted[each.last.names]
        if each.place.role in _find_roles(quantity, roles)
    }


def _select_quantities(each: RoleScrapes, roles: Set[str], dropped: Set[str], names: str) -> RoleScrapes:
    """Return a server's scrapes, under these names, with the quantities that are counted at its role."""

    def select(values: Mapping[Series, float]) -> dict[Series, float]:
        return {
            series: value
            for series, value in values.items()
            if series[1] not in dropped and each.place.role in _find_roles(series[1], roles)
        }

    def reduce(snapshot: MetricsSnapshot) -> MetricsSnapshot:
        return MetricsSnapshot(names, select(snapshot.counters), select(snapshot.gauges))

    samples = [(at_s, reduce(snapshot)) for at_s, snapshot in each.samples]
    return replace(each, before=reduce(each.before), last=reduce(each.last), samples=samples)


def _join_samples(every: Sequence[RoleScrapes]) -> Iterator[tuple[float, MetricsSnapshot]]:
    """Yield the sum of the servers' samples at the times of the one that was sampled most rarely.

    Of the others the nearest counts. One that ended has no gauges from then on, and its last counters.
    """
    lasting = [each for each in every if each.ended_s is None] or every
    times = min(([at_s for at_s, _ in each.samples] for each in lasting), key=len)
    if not all(each.samples for each in lasting):
        return
    for at_s in times:
        yield at_s, sum_snapshots([_find_sample(each, at_s) for each in every])


def _find_sample(each: RoleScrapes, at_s: float) -> MetricsSnapshot:
    """Find the sample nearest to a time; a stand-in from a server's end on, or where it has none."""
    times = [time_s for time_s, _ in each.samples]
    if not times or (each.ended_s is not None and at_s >= each.ended_s):
        counted = each.samples[-1][1] if times else each.before
        return MetricsSnapshot(each.last.names, counted.counters)
    place = bisect_right(times, at_s)
    near = [i for i in (place - 1, place) if 0 <= i < len(times)]
    return each.samples[min(near, key=lambda i: abs(times[i] - at_s))][1]


def find_end(scrapes: RoleScrapes) -> RoleScrapes:
    """Return a server's scrapes without failed samples, and with when it ended or restarted in the run.

    The time is that of the first scrape that failed or showed it, else of the last sample; 0 without any.
    """
    good: list[tuple[float, MetricsSnapshot]] = []
    latest, after, failed_s = scrapes.before, scrapes.last, None
    for at_s, snapshot in scrapes.samples:
        if snapshot.error:
            failed_s = at_s if failed_s is None else failed_s
            continue
        if has_restarted(latest, snapshot):
            ended_s = at_s if failed_s is None else failed_s
            return replace(scrapes, samples=good, ended_s=ended_s, restarted=True)
        good.append((at_s, snapshot))
        latest, failed_s = snapshot, None
    if not after.error and not has_restarted(latest, after):
        return replace(scrapes, samples=good)
    if failed_s is None:
        failed_s = good[-1][0] if good else 0.0
    restarted = not after.error
    return replace(scrapes, samples=good, ended_s=failed_s, ended_why=after.error, restarted=restarted)


@invalid(
    "worker-ended",
    "a server of --metrics-url answered before the run and not after it, or one of its counters went "
    "backwards: it ended or restarted, and the others had its load",
    "find in that server's log why it ended, then run again",
    Source.COUNTERS,
    origin=Origin.LOAD,
)
def worker_ended(run: RunEvidence) -> Evidence | None:
    """Find evidence that a server behind the router ended or restarted during the run."""
    return join_evidence(
        map(describe_end, (each for each in run.facts.role_windows if each.ended_s is not None))
    )


def describe_end(server: RoleWindow) -> str:
    """Describe when a server ended or restarted, by its scrapes."""
    by = f"by {server.ended_s or 0.0:.1f} s"
    if server.restarted:
        return f"{server.label} restarted {by}"
    return f"{server.label} ended {by}: {server.ended_why.rstrip('.') or 'it did not answer'}"


limit = partial(limit_doubts, ("role_windows",))
