"""Shown request: one request of a plan as it would be sent, for --print-request."""

from __future__ import annotations

import json

from msgspec.structs import replace

from loadgen.endpoint.secrecy import HIDDEN, Secrets
from loadgen.transport.job import Target
from loadgen.workload.plan import Plan


def text(made: Plan, target: Target, request_id: str, hidden: Secrets) -> str:
    """Head and body of the plan's first request, without secrets."""
    body = made.body(0)
    headless = replace(target, headers=tuple((name, HIDDEN) for name, _ in target.headers))
    head = headless.request_head(len(body), request_id)
    shown_body = json.dumps(hidden.mask(json.loads(body)), ensure_ascii=False, separators=(",", ":"))
    return hidden.conceal(head.decode("latin-1").replace("\r\n", "\n")) + shown_body
