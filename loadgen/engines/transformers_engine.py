"""Transformers engine: how transformers serve is recognised, and what its requests may hold."""

from __future__ import annotations

from loadgen.engines.engine import Engine

TRANSFORMERS = Engine(
    "transformers serve",
    own_path="/load_model",
    sends_at_once=True,
    takes_ids=False,
    takes_ignore_eos=False,
    # Generating begins by taking the first end of sequence for padding where the model names none.
    forces_length='{"eos_token_id":[],"pad_token_id":0}',
    max_tokens_field="max_tokens",
    lists_its_model=False,
    published_as="Transformers",
    launch_name="transformers",
)
