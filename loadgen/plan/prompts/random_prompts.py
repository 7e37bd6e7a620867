"""Random prompts: the requests of a profile without a file: ids where the API takes them, else text."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.plan.data_facts import DataFacts
from loadgen.plan.model_files import find_vocabulary
from loadgen.plan.plan_inputs import ModelTarget, PlanInputs, SourcedRequests, WordCounts
from loadgen.plan.profile import Profile
from loadgen.plan.prompts import lengths, random_ids
from loadgen.plan.prompts.random_ids import PromptShape, TokenIds, parse_range_ratio
from loadgen.plan.prompts.tokenizers import find_needed_tokenizer, find_optional_tokenizer
from loadgen.plan.prompts.vllm_texts import make_vllm_texts
from loadgen.wire.openai import Dialect

WORDS = "words"  # sized by the server's own count


def requests(inputs: PlanInputs) -> SourcedRequests:
    """The random requests of a profile; raises UsageError where profile and server do not fit."""
    shape, notes = make_shape(inputs)
    form = choose_form(inputs.profile, inputs.subject, inputs.dialect)
    made = _FORMS[form](form, shape, inputs)
    unknown = {} if is_count_known(shape, inputs.profile) else {"reusable_tokens": None}
    return replace(made, facts=made.facts.model_copy(update=unknown), notes=(*notes, *made.notes))


def make_shape(inputs: PlanInputs) -> tuple[PromptShape, list[str]]:
    """How many prompts there are and how long, and notes on lengths that are not as they were asked for."""
    profile = inputs.profile
    ratios = parse_range_ratio(profile.range_ratio, profile.compat)
    dists: list[lengths.LengthDistribution | None] = []
    notes = []
    for flag, text, usual in (
        ("--input-dist", profile.input_dist, profile.input_len),
        ("--output-dist", profile.output_dist, profile.output_len),
    ):
        dists.append(made := lengths.parse_lengths(text, flag, usual) if text else None)
        if made is not None and (remark := made.remark()):
            notes.append(f"{flag} {text}: {remark}")
    count = profile.most_prompts if inputs.most is None else inputs.most
    shape = PromptShape(
        count, profile.input_len, profile.output_len, *ratios, profile.prefix_len, profile.compat
    )
    groups = {"prefix_groups": profile.prefix_groups, "prefix_zipf": profile.prefix_zipf}
    by_class = None
    if profile.classes:
        by_class = random_ids.draw_class_lens(profile.classes, inputs.stream, count, profile.compat)
    dists_of = {"input_dist": dists[0], "output_dist": dists[1]}
    return replace(shape, **dists_of, **groups, class_lens=by_class), notes


def choose_form(profile: Profile, subject: ModelTarget, dialect: Dialect) -> str:
    """The form of the prompts: ids where the API takes them, unless the profile names one or a text.

    Raises UsageError where the API does not take it.
    """
    wanted, text = profile.prompt_format, profile.prompt_corpus
    if text and wanted not in ("auto", "corpus"):
        raise UsageError(f"--prompt-corpus and --prompt-format {wanted} are two texts: leave out one of them")
    takes_ids = subject.takes_ids(dialect)
    if wanted == "ids" and not takes_ids:
        who = subject.name_text_api(dialect)
        raise UsageError(f"{who} takes text, not token ids: use --prompt-format words or corpus")
    if wanted != "auto":
        return wanted
    if text:
        return "corpus"
    if takes_ids:
        return "ids"
    return WORDS if find_optional_tokenizer(subject) is None else "text-vllm"


def find_text_tokenizer(profile: Profile, subject: ModelTarget) -> str:
    """The tokenizer that makes the texts; raises UsageError where there is none."""
    what, instead = "the data set is text", ""
    if profile.dataset_name not in (None, "random"):
        what = f"--dataset-name {profile.dataset_name} is text"
    elif profile.prompt_format != "auto" or profile.prompt_corpus:
        given = f"--prompt-format {profile.prompt_format}"
        what = f"{'--prompt-corpus' if profile.prompt_format == 'auto' else given} sends text"
        instead = "; --prompt-format words needs none"
    return find_needed_tokenizer(subject, what, instead)


def _make_ids(form: str, shape: PromptShape, inputs: PlanInputs) -> SourcedRequests:
    """Random token ids, each prompt drawn when it is due."""
    subject = inputs.subject
    vocabulary = find_vocabulary(subject.tokenizer, subject.model_root, subject.vocab_size)
    made = TokenIds(shape, vocabulary, inputs.stream)
    facts = DataFacts(sent=shape.num_prompts, reusable_tokens=made.reusable_tokens)
    return SourcedRequests(made, facts, ids_source=vocabulary.source)


def _make_texts(form: str, shape: PromptShape, inputs: PlanInputs) -> SourcedRequests:
    """Texts as other clients make them, all beforehand."""
    tokenizer = find_text_tokenizer(inputs.profile, inputs.subject)
    check_count(form, shape, inputs.profile)
    texts = make_vllm_texts(form, shape, tokenizer, inputs.shared_seed)
    reusable = shape.prefix_len * max(0, shape.num_prompts - 1)
    facts = DataFacts(sent=shape.num_prompts, reusable_tokens=reusable)
    return SourcedRequests(texts, facts, tokenizer=tokenizer)


def _make_corpus(form: str, shape: PromptShape, inputs: PlanInputs) -> SourcedRequests:
    """Real text: its ids where the API takes them."""
    from loadgen.plan.prompts import prompt_texts

    profile, subject = inputs.profile, inputs.subject
    text = prompt_texts.load_corpus(profile.prompt_corpus)
    tokenizer = find_text_tokenizer(profile, subject)
    tokens, encoder = prompt_texts.encode_corpus(text, tokenizer)
    cut = prompt_texts.CorpusIds(shape, text, tokens, inputs.stream)
    facts = DataFacts(
        file=text.file,
        file_digest=text.digest if text.file else "",
        sent=shape.num_prompts,
        text=text.name,
        reusable_tokens=cut.reusable_tokens,
    )
    if subject.takes_ids(inputs.dialect):
        return SourcedRequests(cut, facts, ids_source=f"{text.name}, by {tokenizer}", tokenizer=tokenizer)
    check_count(form, shape, profile)
    return SourcedRequests(prompt_texts.CorpusTexts(cut, tokens, encoder), facts, tokenizer=tokenizer)


def _make_words(form: str, shape: PromptShape, inputs: PlanInputs) -> SourcedRequests:
    """Common words, as many as the server counts as the tokens that are asked for."""
    from loadgen.plan.prompts import prompt_texts

    counts = inputs.subject.word_counts or WordCounts()
    made = prompt_texts.WordTexts(shape, counts, inputs.stream)
    kinds = len(counts.words or prompt_texts.list_common_words())
    facts = DataFacts(
        sent=shape.num_prompts, text=f"{kinds} common words", reusable_tokens=made.reusable_tokens
    )
    return SourcedRequests(made, facts, notes=(f"prompts of words: {counts.explanation}",))


def is_count_known(shape: PromptShape, profile: Profile) -> bool:
    """Whether it is known how many prompts will be sent; else there are as many as time may allow."""
    return profile.num_prompts is not None or shape.num_prompts < profile.most_prompts


def check_count(form: str, shape: PromptShape, profile: Profile) -> None:
    """Raises UsageError where the number of texts, which are made beforehand, is not known."""
    if not is_count_known(shape, profile):
        raise UsageError(f"--duration with {form} needs --num-prompts: texts are all built beforehand")


_FORMS: dict[str, Callable[[str, PromptShape, PlanInputs], SourcedRequests]] = {
    "ids": _make_ids,
    "text-vllm": _make_texts,
    "text-vllm-0.9": _make_texts,
    "corpus": _make_corpus,
    WORDS: _make_words,
}
