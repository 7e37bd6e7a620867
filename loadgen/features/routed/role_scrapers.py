"""Role scrapers: the metrics of every server behind a router, in place of the router's own: --metrics-url."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.secrecy import hide_url_secrets
from loadgen.base.structs import replace
from loadgen.base.text import quote_value
from loadgen.base.urls import check_path, read_host, read_port, split_http_url
from loadgen.engines.engines import METRICS
from loadgen.features.routed.reconciled_roles import (
    MetricsUrl,
    RoleScrapes,
    find_end,
    make_role_window,
    reconcile_roles,
)
from loadgen.run.command.options import Options
from loadgen.server import exchange
from loadgen.server.exchange import ServerAddress
from loadgen.server.prometheus import MetricLines, MetricsSnapshot, has_restarted, parse_metrics, select_lines
from loadgen.server.sample_file import SampledSeries, list_gauge_series
from loadgen.server.scraper import LARGEST_BYTES, JoinedScraper, MetricsScraper, sum_waiting
from loadgen.server.server_counters import ROLES, ROUTER, RoleWindow, ServerWindow

FLAG = "--metrics-url"
_ANSWER_S = 3.0
_OK = 200


def parse_metrics_urls(texts: Sequence[str]) -> list[MetricsUrl]:
    """Parse every ROLE=URL, with names that are short and differ; raises UsageError.

    A name is the host's first label, or its address, and the port; where two would be the same, of the whole
    host, or with the place in the list.
    """
    places = [_parse_url(text) for text in texts]
    for place in places:
        if sum(each.origin + each.path == place.origin + place.path for each in places) > 1:
            raise UsageError(
                f"{FLAG} {place.shown}: this URL is given twice, and its counters would be summed twice: "
                "give each once"
            )
    forms = [_list_names(place) for place in places]
    counts = [Counter(names) for names in zip(*forms, strict=True)]
    named = []
    for i, (place, names) in enumerate(zip(places, forms, strict=True), 1):
        apart = (name for name, count in zip(names, counts, strict=True) if count[name] == 1)
        named.append(replace(place, name=next(apart, f"{names[1]}#{i}")))
    return named


def _parse_url(text: str) -> MetricsUrl:
    """Parse ROLE=URL, with "" as name; raises UsageError for a wrong role, URL or path, and credentials."""
    role, equals, url = text.strip().partition("=")
    if not equals or role not in ROLES:
        what = "no role is named" if "://" in role or not equals else f"{quote_value(role)} is no role"
        raise UsageError(
            f"{FLAG}: {what}: write ROLE=URL, as decode=http://10.0.0.2:8000, with {', '.join(ROLES[:-1])} "
            f"or {ROLES[-1]}"
        )
    parts = split_http_url(url)
    if parts is None or parts.fragment:
        shown = quote_value(hide_url_secrets(url))
        raise UsageError(f"{FLAG} {role}={shown}: not a URL: write it like http://10.0.0.2:8000")
    if parts.username or parts.password:
        raise UsageError(
            f"{FLAG} {role}: the URL holds credentials (not shown): none are sent: leave them out"
        )
    path = parts.path.rstrip("/") + (f"?{parts.query}" if parts.query else "")
    check_path(path, FLAG)
    return MetricsUrl(role, "", f"{parts.scheme}://{parts.netloc}", path)


def _list_names(place: MetricsUrl) -> tuple[str, str]:
    """Return a server's short name, with its host's first label, and its whole one, both with the port."""
    host, port = read_host(place.origin), read_port(place.origin)
    whole = f"{f'[{host}]' if ':' in host else host}:{port}"
    try:
        ip_address(host)
    except ValueError:
        return f"{host.partition('.')[0]}:{port}", whole
    return whole, whole


class RoleScraper(MetricsScraper):
    """Scrapes one server behind a router, and keeps its last whole answer from before it ended."""

    def __init__(self, access: ServerAddress, model: str, place: MetricsUrl, path: str) -> None:
        super().__init__(access, model, path)
        self.place, self._empty = place, False

    def begin(self, lines: MetricLines) -> None:
        """Start a run; the lines are parsed now, so that no parser is imported in it."""
        super().begin(lines)
        self._seen, self._over, self._body = parse_metrics(lines), False, b""
        self._began_empty = self._empty

    def _read_answer(self, status: int, body: bytes, wanted: Container[str] | None) -> MetricLines:
        """Select an answer's lines; of a run keep the body, until the server has restarted."""
        lines = super()._read_answer(status, body, wanted)
        self._empty = status == _OK and not body.strip()
        if wanted is None or lines.error or self._over:
            return lines
        sample = parse_metrics(lines)
        self._over = has_restarted(self._seen, sample)
        if not self._over:
            self._seen, self._body = sample, body
        return lines

    def collect(self, after: MetricLines, settled: bool) -> RoleScrapes:
        """Collect the scrapes of a run; where the server ended in it, with the last before that."""
        before, last = parse_metrics(self.began), parse_metrics(after)
        if self._began_empty and not last.error:  # a router that nothing had been sent to
            before = MetricsSnapshot(last.names)
        if before.error:
            return RoleScrapes(place=self.place, before=before, last=last)
        samples = [(at_s, parse_metrics(lines)) for at_s, lines in self.samples]
        scrapes = find_end(RoleScrapes(self.place, before, last, settled, samples))
        if scrapes.ended_s is None:
            return scrapes
        last = parse_metrics(select_lines(_OK, self._body)) if self._body else before
        return replace(scrapes, last=last)


class RoleScrapers(JoinedScraper):
    """Scrapes the servers behind a router; the run's window is made of each by its role."""

    def __init__(self, scrapers: Sequence[RoleScraper]) -> None:
        super().__init__(scrapers)
        self.by_role = scrapers
        self._windows: list[tuple[RoleWindow, ServerWindow]] = []

    def scrape_after(self, meanwhile: Callable[[], object] = lambda: None) -> ServerWindow:
        """Scrape every server once it is idle, or after the longest wait; return the reconciled change.

        `meanwhile` is called once where there is a wait.
        """
        scrapes = self.scrape_all(self.longest_wait_s, meanwhile)
        every = [
            scraper.collect(lines, settled)
            for scraper, (lines, settled) in zip(self.by_role, scrapes, strict=True)
        ]
        self._windows = [make_role_window(each, self.model) for each in every]
        return reconcile_roles(every, self.model)

    def count_waiting(self) -> int | None:
        """Sum the requests waiting in all engines; None if one does not report it."""
        return sum_waiting([each for each in self.by_role if each.place.role != ROUTER])

    def list_role_windows(self) -> tuple[RoleWindow, ...]:
        return tuple(role for role, _ in self._windows)

    def list_series(self) -> list[SampledSeries]:
        """List the gauges of each server over the run, by its name."""
        return [
            replace(series, where=role.label)
            for scraper, (role, window) in zip(self.by_role, self._windows, strict=False)
            for series in list_gauge_series(window, scraper.began_ns)
        ]


def check_options(options: Options) -> None:
    """Raise UsageError for a URL that is wrong or given twice, and for what scrapes elsewhere or not."""
    parse_metrics_urls(options.metrics_url)
    if options.more_urls:
        raise UsageError(
            f"{FLAG} is for servers behind one router, and several --base-url are scraped already: "
            "leave one of them out"
        )
    if not options.observe:
        raise UsageError(f"{FLAG} names what is scraped, and --no-observe scrapes nothing: leave one out")


def find_scrapers(options: Options, access: ServerAddress) -> Callable[[MetricsScraper], RoleScrapers]:
    """Find where each server behind a router has metrics; return what makes their scrapers for a run.

    Raises MeasureError that names one without.
    """
    found = []
    for place in parse_metrics_urls(options.metrics_url):
        # Its key is the router's, and goes nowhere else.
        reached = replace(access, base_url=place.origin, headers={}, prefix="", query="", key_origin="")
        if place.origin.startswith("http:"):
            reached = replace(reached, insecure=False, ca_cert=None, client_cert=None, client_key=None)
        found.append((place, reached, reached.loop.run(_find_path(place, reached))))
    _check_apart(found)
    return lambda first: RoleScrapers(
        [RoleScraper(reached, first.model, place, path) for place, reached, path in found]
    )


def _check_apart(found: Sequence[tuple[MetricsUrl, ServerAddress, str]]) -> None:
    """Raise UsageError where two URLs, as one without and one with a path, turn out to be the same."""
    seen: dict[tuple[str | None, int, str], MetricsUrl] = {}
    for place, _, path in found:
        key = urlsplit(place.origin).hostname, read_port(place.origin), path
        if (first := seen.setdefault(key, place)) is not place:
            raise UsageError(
                f"{FLAG} {place.shown} is the same as {first.shown}, and its counters would be summed twice: "
                "leave one out"
            )


async def _find_path(place: MetricsUrl, access: ServerAddress) -> str:
    """Find where a server has metrics that are known: at its own path, or at one of the engines' paths.

    A router's may be empty before its first request. Raises MeasureError.
    """
    paths = [place.path] if place.path else list(dict.fromkeys(row.path for row in METRICS.values()))
    errors = []
    async with access.client(_ANSWER_S) as client:
        for path in paths:
            answer = await exchange.ask_server(client, "GET", path, _ANSWER_S, LARGEST_BYTES)
            if answer.error:
                errors.append(answer.why)
                break  # no other path would be answered
            lines = select_lines(answer.status, answer.body)
            is_new = place.role == ROUTER and answer.status == _OK and not answer.body.strip()
            if not lines.error or is_new:
                row = METRICS.get(lines.names)
                if row is not None and row.routes and place.role != ROUTER:
                    whose = row.label or row.name
                    raise MeasureError(f"{FLAG} {place.shown} is a router's ({whose}): write {ROUTER}=URL")
                return path
            errors.append(lines.error)
    raise MeasureError(f"{FLAG} {place.shown}: {errors[0]}: check role, host and port, or leave it out")
