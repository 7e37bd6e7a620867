"""The plan of one profile, in a process of its own: `python benchmarks/planned.py '{"trace": "FILE"}'`.

What every run does before its first byte: the plan, its digest, its repeated prompts, and a few bodies.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path[0:1] = [str(Path(__file__).resolve().parent.parent)]

from loadgen.engines import engines  # noqa: E402
from loadgen.plan import plan, profile  # noqa: E402
from loadgen.plan.request_sources import ModelTarget, Seed  # noqa: E402

_BODIES = 1000


def main(keys: str) -> None:
    """Print the requests, the seconds and the digest of the plan that this JSON object of keys means."""
    begin = time.perf_counter()
    made = plan.make(
        profile.build(json.loads(keys)), ModelTarget(engine=engines.UNKNOWN, model="null"), Seed(1)
    )
    digest, repeated = made.digest(), plan.count_repeated_prompts(made)
    planned = time.perf_counter()
    size = sum(len(made.body(i)) for i in range(0, len(made), max(1, len(made) // _BODIES)))
    seconds = {"plan_s": planned - begin, "bodies_s": time.perf_counter() - planned}
    print(
        json.dumps({"requests": len(made), "digest": digest, "repeated": repeated, "bytes": size, **seconds})
    )


if __name__ == "__main__":
    main(sys.argv[1])
