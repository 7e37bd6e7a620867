"""Doubts: the closed set of what can be wrong with a run, each with its condition, severity and remedy.

The order is that of telling: of two doubts as severe, the one that explains the other comes first. Every
threshold stands in its condition, with why a healthy server at rest does not reach it.
"""

from __future__ import annotations

from loadgen.validity import client_checks as client
from loadgen.validity import load_checks as load
from loadgen.validity import server_checks as server
from loadgen.validity.client_doubts import CLIENT
from loadgen.validity.doubt import NOTE, Doubt, Severity
from loadgen.validity.evidence import LEAST_GAUGES, EvidenceSource, percent
from loadgen.validity.load_doubts import LOAD, RESENT_REMEDY
from loadgen.validity.server_doubts import SERVER

__all__ = ["DOUBTS", "Doubt", "Severity"]

NOTES = (
    Doubt(
        "resent",
        NOTE,
        load.resent,
        f"up to {percent(load.RESENT)} of the requests were sent again because the server had closed the "
        "idle connection",
        RESENT_REMEDY,
    ),
    Doubt(
        "journal",
        NOTE,
        client.journal,
        "the journal of finished requests could not be written in full while the run went on: had the client "
        "been killed, they were lost",
        "give --run-dir a disk with room that can be written",
    ),
    Doubt(
        "early-ends",
        NOTE,
        load.early_ends,
        f"ignore_eos was not sent and answers average under {percent(load.ANSWER_SHORT)} of the length "
        "allowed",
        "use --ignore-eos where answers are to be equally long",
    ),
    Doubt(
        "overload",
        NOTE,
        load.overload,
        f"at a finite rate, {load.GROWN} times as many requests were under way at the end of sending as at "
        f"half of it, beyond {load.NOISE:.0f} standard deviations of two Poisson counts: latencies depend on "
        "the run's length",
        "lower --request-rate for a steady state, or take it as a test of overload",
    ),
    Doubt(
        "queued",
        NOTE,
        server.queued,
        f"in most of at least {LEAST_GAUGES} samples requests waited, though the server's own limit is not "
        "the reason: prefill is the bottleneck, or the KV cache is full",
        "read TTFT as prefill and queue; lower --max-concurrency to see prefill alone",
        EvidenceSource.GAUGES,
    ),
    Doubt(
        "latencies-differ",
        NOTE,
        server.latencies_differ,
        "a mean of the server's own histograms is off the client's by more than the places of the two "
        "clocks explain",
        "read the client's: it is what a user waits for",
        EvidenceSource.COUNTERS,
    ),
    Doubt(
        "several-models",
        NOTE,
        server.several_models,
        "counters of more than one model moved behind the port",
        "see that no other model has work, or figures of the server are of all",
        EvidenceSource.COUNTERS,
    ),
    Doubt(
        "unsettled",
        NOTE,
        server.unsettled,
        "requests ran or counters moved until the last look at them",
        "compare with the server's figures only after a run that settled",
        EvidenceSource.COUNTERS,
    ),
    Doubt(
        "messages-together",
        NOTE,
        client.messages_together,
        f"more than {percent(client.SHARED)} of the messages shared a read and the client was not late: "
        "the server writes several at once",
        "read TPOT instead of ITL",
    ),
    Doubt(
        "unstamped",
        NOTE,
        client.unstamped,
        "more reads lack a kernel stamp than 1 % and one a request (a response's end may): latencies hold "
        "the client's delay, which `loadgen selftest` measures",
        "use --transport wire on Linux",
    ),
    Doubt(
        "busy-loop",
        NOTE,
        client.busy_loop,
        f"kernel stamps, and {client.CORES} of a core busy or a mean lag over {percent(client.LAG_GAPS)} "
        "of the mean gap: the stamps do not suffer until reads meet (reads-late)",
        "leave the client a core, or spread the load over several clients",
    ),
    Doubt(
        "late-bodies",
        NOTE,
        client.late_bodies,
        f"more than {percent(client.LATE_BODIES)} of the requests were not built when due; what it cost is "
        "in concurrency-not-held and sends-late",
        "shorten the prompts, lower --request-rate, or give the client a core",
    ),
    Doubt(
        "headroom",
        NOTE,
        client.headroom,
        f"messages per second within {client.HEADROOM} times of what the self-test could measure",
        "see `loadgen selftest` for the error at this load",
        EvidenceSource.SELFTEST,
    ),
    Doubt(
        "thin-percentiles",
        NOTE,
        load.thin_percentiles,
        "a percentile q of fewer samples than ln 0.05 / ln q, which an upper bound that holds in 95 % of "
        "runs needs (P99: 299); a point needs 1 / (1 - q) (P99: 100)",
        "raise --num-prompts, or ask for a lower --metric-percentiles",
    ),
    Doubt(
        "ran-out",
        NOTE,
        load.ran_out,
        "closed loop with --duration: the last prompt was sent while there was time for more",
        "give more --num-prompts, or none",
    ),
    Doubt(
        "ramp-and-drain",
        NOTE,
        load.ramp_and_drain,
        f"closed loop: more than {percent(load.OUTSIDE)} of the duration lies before the asked concurrency "
        "is reached or after the first request that is not replaced, and every rate is over the duration",
        "raise --num-prompts, or read the steady state's figures",
    ),
    Doubt(
        "few-per-slot",
        NOTE,
        load.few_per_slot,
        f"closed loop: fewer than {load.PER_SLOT} requests a slot, so first and last wave are most of the "
        "run",
        "raise --num-prompts",
    ),
)

DOUBTS = (*LOAD, *SERVER, *CLIENT, *NOTES)
