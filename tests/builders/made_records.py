"""One record of a response, with what a test leaves unsaid as it is most often."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from loadgen.records.record import Record


def make_record(sent_ns: int, arrival_ns: ArrayLike, index: int = 0, **fields: Any) -> Record:
    """Make an answer in slot 0, sent when it was due, a token a message, over with its last message."""
    arrived_ns = np.asarray(arrival_ns, np.int64)
    usual: dict[str, Any] = {
        "slot": 0,
        "intended_ns": sent_ns,
        "end_ns": int(arrived_ns[-1]) if len(arrived_ns) else sent_ns,
        "tokens": np.ones(len(arrived_ns), np.int64),
    }
    return Record(index=index, sent_ns=sent_ns, arrival_ns=arrived_ns, **(usual | fields))
