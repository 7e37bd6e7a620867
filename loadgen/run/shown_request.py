"""Shown request: one request of a plan as it would be sent, for --print-request."""

from __future__ import annotations

import json

from msgspec.structs import replace

from loadgen.base.secrecy import HIDDEN, Secrets
from loadgen.plan.plan import Plan
from loadgen.transport.sending.job import Target


def text(made: Plan, target: Target, request_id: str, hidden: Secrets) -> str:
    """Head and body of the plan's first request, without secrets."""
    body = made.body(0)
    headless = replace(target, headers=tuple((name, HIDDEN) for name, _ in target.headers))
    head = headless.make_head(len(body), (("x-request-id", request_id),))
    fields = json.loads(body)
    masked = hidden.mask(fields)
    # As it is sent, to the byte, unless it holds a secret: 0.70 in a file is 0.70 here.
    shown_body = json.dumps(masked, ensure_ascii=False, separators=(",", ":"))
    if masked == fields:
        shown_body = body.decode()
    return hidden.conceal(head.decode("latin-1").replace("\r\n", "\n")) + shown_body
