"""Random prompts: the requests of a profile without a file: ids where the API takes them, else text."""

from __future__ import annotations

from loadgen.errors import UsageError
from loadgen.protocol.openai import Chat
from loadgen.workload.data_facts import DataFacts
from loadgen.workload.plan_inputs import ModelTarget, PlanInputs, SourcedRequests
from loadgen.workload.profile import Profile
from loadgen.workload.prompts.random_ids import PromptShape, TokenIds, parse_range_ratio
from loadgen.workload.prompts.vllm_random import text_prompts
from loadgen.workload.requests import Requests
from loadgen.workload.vocabulary import find_tokenizer, find_vocabulary


def requests(inputs: PlanInputs) -> SourcedRequests:
    """The random requests of a profile; raises UsageError where profile and server do not fit."""
    profile, subject = inputs.profile, inputs.subject
    count = profile.most_prompts if inputs.most is None else inputs.most
    ratios = parse_range_ratio(profile.range_ratio, profile.compat)
    lens = profile.input_len, profile.output_len
    shape = PromptShape(count, *lens, *ratios, profile.prefix_len, profile.compat)
    form = _format(profile, subject, isinstance(inputs.dialect, Chat))
    if form == "ids":
        vocabulary = find_vocabulary(subject.tokenizer, subject.model_root, subject.vocab_size)
        ids = TokenIds(shape, vocabulary, inputs.stream)
        return SourcedRequests(ids, DataFacts(sent=count), ids_source=vocabulary.source)
    tokenizer = model_tokenizer(profile, subject)
    texts = _texts(form, shape, inputs, tokenizer)
    return SourcedRequests(texts, DataFacts(sent=count), tokenizer=tokenizer)


def _format(profile: Profile, subject: ModelTarget, chat: bool) -> str:
    """The form of the prompts: ids where the API takes them, unless the profile names one.

    Raises UsageError where the API does not take it.
    """
    takes_ids = subject.engine.takes_ids and not chat
    wanted = profile.prompt_format
    if wanted == "ids" and not takes_ids:
        who = "the chat API" if chat else subject.engine.name
        raise UsageError(f"{who} takes text, not token ids: use --prompt-format text-vllm")
    return ("ids" if takes_ids else "text-vllm") if wanted == "auto" else wanted


def model_tokenizer(profile: Profile, subject: ModelTarget) -> str:
    """The tokenizer that makes the texts: the one that was named, else the model's; raises UsageError."""
    if subject.tokenizer is not None:
        return subject.tokenizer
    if (found := find_tokenizer(subject.model_root, subject.model)) is not None:
        return str(found)
    if profile.prompt_format != "auto":
        what = f"--prompt-format {profile.prompt_format} sends text"
    elif profile.backend == "openai-chat":
        what = "--backend openai-chat sends text"
    else:
        what = f"{'the chat API' if subject.engine.takes_ids else subject.engine.name} takes text"
    raise UsageError(
        f"{what}, which needs a tokenizer, and none of {subject.model} is on this machine: pass --tokenizer "
        "with a directory or a name of the Hugging Face Hub (the model's own, or one like it: usage then has "
        "the server's count)"
    )


def _texts(form: str, shape: PromptShape, inputs: PlanInputs, tokenizer: str) -> Requests:
    """Texts as other clients make them."""
    if inputs.profile.num_prompts is None and shape.num_prompts == inputs.profile.most_prompts:
        raise UsageError(f"--duration with {form} needs --num-prompts: texts are all built beforehand")
    return text_prompts(form, shape, tokenizer, inputs.shared_seed)
