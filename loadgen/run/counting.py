"""Counting: how a server counts words is learned once, in the form in which the run's requests are sent."""

from __future__ import annotations

from msgspec.structs import replace

from loadgen.plan import plan
from loadgen.plan.plan_inputs import ModelTarget, Seed, WordCounts
from loadgen.plan.profile import Profile
from loadgen.run.adapting import Adapter
from loadgen.run.progress import display


def counted(
    adapter: Adapter, known: dict[str, WordCounts], workload: Profile, seed: Seed, limit: int
) -> ModelTarget:
    """The adapter's model, with the server's own count of words where prompts are made of words.

    It is asked once for all requests of one form, of which it takes `limit` tokens (0: not known). What it
    refuses of a request is learned before, as it would be for the run. Raises MeasureError.
    """
    subject = adapter.subject
    if not plan.is_counted_by_server(workload, subject):
        return subject
    from loadgen.server.prompt_counts import PromptCounter  # no other run needs it

    asked = plan.make_warmup(
        workload.model_copy(update={"num_warmups": 1, "prefix_len": 0, "prefix_groups": 1}), subject, seed
    )
    key = f"{asked.path} {asked.fields.get('chat_template_kwargs')}"
    if key not in known:
        if subject.engine.unproven:
            asked = adapter.adapted(asked)
        counter = PromptCounter(adapter.access, adapter.tls, asked, subject.engine.hosted, limit)
        with display(adapter.quiet).waiting("asking how the server counts words"):
            known[key] = counter.learn_counts(workload.input_len + workload.prefix_len)
    return replace(subject, word_counts=known[key])
