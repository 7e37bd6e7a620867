"""The exact KL divergence of two models along token ids, by transformers: what samples of it estimate.

Run with the engines' Python: `python tests/engines/exact_divergence.py SAMPLER OTHER FILE`, the file
a list of [prompt ids, answer ids] in JSON. It prints nats a token.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any


def compute_divergence(sampler: str, other: str, answers: list[tuple[list[int], list[int]]]) -> float:
    """The mean over the answers' positions of the divergence of the next token's distributions."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    models = [
        transformers.AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16)
        for name in (sampler, other)
    ]
    total, tokens = 0.0, 0
    with torch.inference_mode():
        for prompt, answer in answers:
            ids = torch.tensor([[*prompt, *answer]])
            one, two = (
                model(ids).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1) for model in models
            )
            total += float((one.exp() * (one - two)).sum())
            tokens += len(answer)
    return total / tokens


if __name__ == "__main__":
    print(compute_divergence(sys.argv[1], sys.argv[2], json.loads(Path(sys.argv[3]).read_text())))
