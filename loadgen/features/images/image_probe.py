"""Image probe: after a run, the server's count of some requests' text, sent again without their images.

What the same request had more are its images' tokens, whatever the server's template and tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import numpy as np

from loadgen.base.errors import MeasureError
from loadgen.base.structs import replace
from loadgen.engines import refusals
from loadgen.facts.run_facts import Facts, ImageProbe
from loadgen.features.images.image_requests import ImageRequests
from loadgen.plan.plan import Plan
from loadgen.plan.planned_requests import merge_fields
from loadgen.records.decoded_stream import count_prompt
from loadgen.records.record import Records
from loadgen.run.command.progress import Display
from loadgen.run.firing import Outcome
from loadgen.server import control
from loadgen.server.exchange import ServerAddress
from loadgen.wire.openai import ANSWER_LIMITS

MOST_PROBES = 8
_LIMIT_S = 60.0


def list_steps(
    access: ServerAddress, made: Plan, outcome: Outcome, display: Display
) -> Iterator[tuple[str, Callable[[Facts], Facts]]]:
    """Yield the step that adds counts of text alone; none if interrupted, or the server counts the images."""
    records = outcome.records
    if not outcome.interrupted and (records.image_tokens[records.ok] < 0).any():
        add_counts = partial(add_text_counts, access=access, made=made, records=records, display=display)
        yield "the tokens of images", add_counts


def add_text_counts(
    known: Facts, access: ServerAddress, made: Plan, records: Records, display: Display
) -> Facts:
    """Return the facts with the server's count of the text of up to 8 successful requests with images.

    Requests with different numbers of images come first. Raises MeasureError where the server counts none.
    """
    probes = [
        ImageProbe(index=index, text_tokens=_count_text(access, made, index, display))
        for index in choose_probes(known, records)
    ]
    return replace(known, image_probes=tuple(probes))


def choose_probes(known: Facts, records: Records) -> list[int]:
    """Choose the plan indices of up to 8 counted successes, one of each number of images first."""
    images = known.data.images
    if images is None:
        return []
    counts = images.count_images(records.index)
    fit = np.flatnonzero(records.ok & (records.input_tokens > 0) & (counts > 0))
    _, first = np.unique(counts[fit], return_index=True)
    chosen = dict.fromkeys([*fit[first].tolist(), *fit[:MOST_PROBES].tolist()])
    return [int(records.index[at]) for at in list(chosen)[:MOST_PROBES]]


def _count_text(access: ServerAddress, made: Plan, index: int, display: Display) -> int:
    """Return the server's count of a request's prompt without images; raises MeasureError if it has none."""
    requests = made.requests
    assert isinstance(requests, ImageRequests)
    text = requests.own.request(index, made.dialect, made.model)
    fields = {name: value for name, value in made.fields.items() if name != "min_tokens"}
    body: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(merge_fields(text, fields)))
    limit = made.dialect.limit_field
    least = made.dialect.make_request(made.model, "", 1)[limit]
    body |= {name: least for name in (*ANSWER_LIMITS, limit) if name in body}
    with display.waiting("counting the text of requests with images", _LIMIT_S):
        answer = control.send_request(access, made.path, body, _LIMIT_S)
    counted = count_prompt(made.dialect, answer.body) if answer.status == 200 else 0
    if not counted:
        why = answer.why if answer.error else refusals.format_message(answer.status, answer.body)
        hidden = access.secrets.hide(why)
        raise MeasureError(f"the server does not count a request's text without its images ({hidden})")
    return counted
