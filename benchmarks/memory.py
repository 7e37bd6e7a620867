"""How much memory ten million tokens take: Records built, then every figure computed.

Run by hand: `python benchmarks/memory.py [--tokens 10000000]`. The bars: 64 bytes kept per token
once decoded, and under 1 GiB for the whole process.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterator

import numpy as np

from loadgen.metrics import Ask, compute
from loadgen.record import Record, Records

PER_REQUEST = 128
STREAMS = 1024
STEP_NS = 20_000_000


def requests(tokens: int, per_message: int) -> Iterator[Record]:
    """Answers of 128 tokens on 1024 streams, a message every 20 ms with some jitter."""
    rng = np.random.default_rng(0)
    messages = PER_REQUEST // per_message
    for index in range(tokens // PER_REQUEST):
        wave, slot = divmod(index, STREAMS)
        sent_ns = 1 + (wave * (messages + 5) + slot % 5) * STEP_NS
        jitter_ns = rng.integers(0, STEP_NS // 2, messages)
        arrival_ns = sent_ns + np.arange(3, messages + 3) * STEP_NS + jitter_ns
        yield Record(
            index=index,
            slot=slot,
            intended_ns=sent_ns,
            sent_ns=sent_ns,
            end_ns=int(arrival_ns[-1]),
            arrival_ns=arrival_ns,
            tokens=np.full(messages, per_message),
            input_tokens=64,
            output_tokens=PER_REQUEST,
            usage=True,
        )


def peak_rss() -> int:
    """The most memory this process has held, in bytes."""
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def main() -> None:
    """Build, compute, and print one line a figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--per-message", type=int, default=1, help="tokens in one message")
    args = parser.parse_args()
    idle = peak_rss()
    records = Records.of(requests(args.tokens, args.per_message))
    built = peak_rss()
    started = time.process_time()
    metrics = compute(records, Ask(metric_percentiles=(50.0, 90.0, 99.0, 99.9)))
    seconds = time.process_time() - started
    columns = [*records.columns.values(), records.start, records.arrival_ns, records.tokens]
    kept = sum(column.nbytes for column in columns) / metrics.total_output_tokens
    print(f"tokens                        {metrics.total_output_tokens}")
    print(f"bytes kept per token          {kept:.1f}")
    print(f"peak RSS before               {idle / 2**20:.0f} MiB")
    print(f"peak RSS, records built       {built / 2**20:.0f} MiB")
    print(f"peak RSS, figures computed    {peak_rss() / 2**20:.0f} MiB")
    print(f"CPU to compute                {seconds:.2f} s")


if __name__ == "__main__":
    main()
