"""The public API of quality: `loadgen.quality`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Unpack, cast

from msgspec import Meta

from loadgen.base.signals import Interrupts
from loadgen.features.quality.quality_command import QualityRequest, open_sides
from loadgen.features.quality.quality_record import Quality
from loadgen.features.quality.quality_run import QualityRun, record_reference
from loadgen.features.quality.reference_file import read_reference
from loadgen.report.run import Place
from loadgen.run.command import keywords
from loadgen.run.command.api import BackgroundRun, Interrupted
from loadgen.run.command.keywords import BenchOptions
from loadgen.run.command.options import DEFAULT_URL, Options


class QualityKeywords(BenchOptions, total=False):
    """The options of `quality`: its own, and those of `bench` that are of the server."""

    reference_model: str  # by default the first in /v1/models
    save: str  # file that keeps what the reference samples, and goes on with it
    text: str  # file of the text to score
    tokens: Annotated[int, Meta(ge=1)]  # of all answers
    answer_tokens: Annotated[int, Meta(ge=1)]  # of one, at most
    precision: Annotated[float, Meta(gt=0)]  # of KL, in nats a token, at which to stop
    chat: bool


@keywords.add_keyword_signature(QualityKeywords)
def quality(
    base_url: str | None = None, reference: Place | None = None, **options: Unpack[QualityKeywords]
) -> Quality | None:
    """Measure how far a served model's distribution is from a reference's; docs/quality.md has the figures.

    `reference` is the address of its server, or the file that `save` kept of it. Without one, `save` keeps
    what the server at `base_url` samples, as a reference for later, and None is returned. Nothing is printed.

    Raises LoadgenError where an option is wrong or a server reports no log-probabilities, and
    Interrupted on Ctrl-C, which leaves what `save` has.
    """
    given = keywords.check_keywords(cast("Mapping[str, Any]", options), QualityKeywords, "quality()")
    own = {name: given.pop(name) for name in QualityRequest.__struct_fields__ if name in given}
    place = None if reference is None else os.fspath(reference)
    is_url = place is not None and place.startswith(("http://", "https://"))
    own |= {"reference_url" if is_url else "reference": place}
    request = QualityRequest(**own)
    request.check()
    asked = keywords.make_options(base_url or DEFAULT_URL, given)
    try:
        return BackgroundRun(lambda interrupts: _measure(asked, request, interrupts)).wait()
    except KeyboardInterrupt:
        raise Interrupted(None) from None


def _measure(options: Options, request: QualityRequest, interrupts: Interrupts) -> Quality | None:
    """Measure in this thread, and return the quality; None if there is no reference to hold the server to."""
    with ExitStack() as stack:
        sides = open_sides(options, request, stack, interrupts)
        if request.save is not None:
            record_reference(sides.reference or sides.candidate, sides.plan, Path(request.save))
            if sides.reference is None:
                return None
            sides = sides._replace(reference=None, kept=read_reference(Path(request.save)))
        run = QualityRun(*sides)
        run.measure()
        return run.judge()
