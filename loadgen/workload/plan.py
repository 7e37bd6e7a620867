"""Plan: every request to the server and when it is due, complete before the first byte."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.arrays import Int64
from loadgen.errors import UsageError
from loadgen.protocol.engines import Engine
from loadgen.protocol.openai import Chat, Completions, Dialect
from loadgen.protocol.refusals import Adaptation
from loadgen.protocol.sglang import Generate
from loadgen.workload.arrival import NS_PER_S, Arrival, within
from loadgen.workload.profile import Profile, check_body
from loadgen.workload.prompts import (
    Prompts,
    PromptShape,
    Purpose,
    RandomStream,
    TokenIds,
    arrival_rng,
    digest,
    parse_range_ratio,
)
from loadgen.workload.vllm_prompts import text_prompts
from loadgen.workload.vocabulary import find_tokenizer, find_vocabulary

_USUAL_S = 5  # of a request
_SEED_BITS = 32
# Each API's path, by which an endpoint of one's own is known too: the longer of two comes first.
_APIS: dict[str, Callable[[], Dialect]] = {
    "/chat/completions": Chat,
    "/completions": Completions,
    "/generate": Generate,
}
_BACKENDS = {"openai-chat": "/chat/completions", "sglang": "/generate"}
_COMPARED_PROMPTS = 2048
_NEVER_EQUAL_IDS = 8  # of a thousand ids or more: a chance of 10⁻¹⁸ among _COMPARED_PROMPTS


class ModelTarget(msgspec.Struct, frozen=True):
    """What a plan must know of the server and of the user's files."""

    engine: Engine
    model: str  # the name that requests carry
    model_root: str = ""  # where the server's model lies, if it reports it
    tokenizer: str | None = None
    vocab_size: int | None = None
    endpoint: str | None = None  # None: the dialect's own path
    prefix: str = "/v1"  # of that path, in place of its own
    query: str = ""  # after it, or after the endpoint


class Seed(msgspec.Struct, frozen=True):
    """Where a plan's randomness comes from; a seed that the user chose is `chosen`."""

    value: int
    chosen: bool = False
    repeat: int = 0

    @classmethod
    def drawn(cls) -> Seed:
        """A random seed, so that no two runs share prompts by accident."""
        return cls(secrets.randbits(_SEED_BITS))


class Plan(msgspec.Struct, frozen=True):
    """Requests 0…n−1 of one profile: prompts, lengths, offsets, and the fields of every body."""

    profile: Profile
    seed: Seed
    prompts: Prompts
    offsets_ns: Int64 | None  # None: closed loop
    dialect: Dialect
    path: str
    model: str
    fields: dict[str, Any]  # of every body, other than prompt and length
    ids_source: str = ""  # where token ids are drawn from; "" for text
    notes: tuple[str, ...] = ()  # what was requested and cannot be, in words
    tokenizer: str = ""  # that made the texts, where none was named
    adaptation: Adaptation = Adaptation()  # what of the body is not as the profile has it

    def __len__(self) -> int:
        return len(self.prompts.input_lens)

    @property
    def total(self) -> int | None:
        """How many requests there will be; None where only the time for sending decides."""
        return None if self.profile.duration is not None and self.offsets_ns is None else len(self)

    @property
    def streams(self) -> int:
        """About how many requests are under way at once, as far as the plan decides that."""
        profile = self.profile
        at_once = len(self) if profile.request_rate == math.inf else int(profile.request_rate * _USUAL_S)
        return min(profile.max_concurrency or len(self), len(self), max(at_once, 1))

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and answer together."""
        return int((self.prompts.input_lens + self.prompts.output_lens).max())

    def adapted(self, adaptation: Adaptation) -> Plan:
        """The plan whose requests leave out or rename what a server refused; prompts and times stay."""
        dialect = self.dialect.limited_by(adaptation.limit_field) if adaptation.limit_field else self.dialect
        fields = adaptation.applied(self.fields)
        return replace(self, dialect=dialect, fields=fields, adaptation=adaptation)

    def refuses_ignore_eos(self, engine: Engine) -> bool:
        """Whether the profile has ignore_eos and no request does, as the engine or this server refuses it."""
        refused = not engine.takes_ignore_eos or "ignore_eos" in self.adaptation.left_out
        return self.profile.ignore_eos and refused

    def payload(self, index: int) -> dict[str, Any]:
        """The JSON object of request `index`."""
        length = int(self.prompts.output_lens[index])
        return merged(self.dialect.request(self.model, self.prompts.prompt(index), length), self.fields)

    def body(self, index: int) -> bytes:
        """The bytes of request `index`, the same each time."""
        return msgspec.json.encode(self.payload(index))

    def digest(self) -> str:
        """A fingerprint of prompts, lengths, offsets and fields: equal plans have equal digests."""
        hashed = hashlib.blake2b(
            msgspec.json.encode([digest(self.prompts), self.path, self.fields]), digest_size=16
        )
        if self.offsets_ns is not None:
            hashed.update(self.offsets_ns.astype("<i8").tobytes())
        return hashed.hexdigest()


def make(profile: Profile, subject: ModelTarget, seed: Seed) -> Plan:
    """The measured plan of a profile; raises UsageError where the profile and the server do not fit."""
    return _plan(profile, subject, seed, "measure")


def warmup(profile: Profile, subject: ModelTarget, seed: Seed) -> Plan:
    """The plan of a profile's warm-up: one closed wave after another, prompts never used again."""
    count = profile.warmups
    wave = min(count, profile.max_concurrency or count)
    shrunk = profile.model_copy(
        update={"num_prompts": count, "max_concurrency": wave, "request_rate": math.inf, "duration": None}
    )
    return _plan(shrunk, subject, seed, "warmup")


def repeated_prompts(plan: Plan) -> int:
    """How many of the plan's first 2048 prompts equal an earlier one of them.

    Token ids are drawn apart for each prompt: two of n prompts of length L are equal by a chance of
    n² / 2 in (ids allowed)^L, which only a length of one or two makes likely.
    """
    shortest = int(plan.prompts.input_lens.min())
    if plan.prompts.format == TokenIds.format and shortest >= _NEVER_EQUAL_IDS:
        return 0
    compared = min(len(plan), _COMPARED_PROMPTS)
    asked = (plan.prompts.prompt(i) for i in range(compared))
    return compared - len({hash(prompt if isinstance(prompt, str) else tuple(prompt)) for prompt in asked})


def _plan(profile: Profile, subject: ModelTarget, seed: Seed, purpose: Purpose) -> Plan:
    check_body(profile)
    dialect, path = _dialect(profile, subject)
    stream = RandomStream(seed.value, profile.name, seed.repeat, purpose)
    offsets_ns, count, schedule_notes = _schedule(profile, stream)
    ratios = parse_range_ratio(profile.range_ratio)
    shape = PromptShape(count, profile.input_len, profile.output_len, *ratios, profile.prefix_len)
    form, source, tokenizer = _format(profile, subject, isinstance(dialect, Chat)), "", ""
    prompts: Prompts
    if form == "ids":
        vocabulary = find_vocabulary(subject.tokenizer, subject.model_root, subject.vocab_size)
        prompts, source = TokenIds(shape, vocabulary, stream), vocabulary.source
    else:
        tokenizer = _tokenizer(profile, subject)
        prompts = _texts(form, profile, shape, stream, seed, tokenizer)
    fields, unsent = _fields(profile, subject.engine, dialect)
    return Plan(
        profile,
        seed,
        prompts,
        offsets_ns,
        dialect,
        path,
        subject.model,
        fields,
        ids_source=source,
        notes=(*schedule_notes, *unsent),
        tokenizer=tokenizer,
    )


def _schedule(profile: Profile, stream: RandomStream) -> tuple[Int64 | None, int, list[str]]:
    """When each request is due (None: closed loop), how many there are at most, and notes on it."""
    duration, most = profile.duration, profile.most_prompts
    notes = []
    if duration is not None:
        notes.append(f"requests are sent for {duration:g} s; those still running then are finished")
    if profile.held_concurrency is not None:
        return None, most, notes
    process = Arrival(profile.request_rate, profile.burstiness)
    if duration is None:
        return process.offsets_ns(most, arrival_rng(stream)), most, notes
    offsets_ns = within(profile.duration_ns, most + 1, process, lambda: arrival_rng(stream))
    if len(offsets_ns) > most:
        end_s = offsets_ns[most - 1] / NS_PER_S
        notes.append(f"the schedule ends after {end_s:.1f} s, with the last of {most} prompts")
        offsets_ns = offsets_ns[:most]
    return offsets_ns, len(offsets_ns), notes


def _dialect(profile: Profile, subject: ModelTarget) -> tuple[Dialect, str]:
    """The API that endpoint and backend name, with the engine's spelling of the length."""
    wanted = _BACKENDS.get(profile.backend)
    own = _APIS[wanted or "/completions"]().path
    path = subject.endpoint or (subject.prefix + own.removeprefix("/v1") if own.startswith("/v1") else own)
    path = path if path.startswith("/") else f"/{path}"
    api = next((ending for ending in _APIS if path.partition("?")[0].endswith(ending)), None)
    if api is None:
        raise UsageError(f"--endpoint {path}: must end in one of {', '.join(_APIS)}")
    if wanted not in (None, api):
        raise UsageError(
            f"--backend {profile.backend} needs an endpoint ending in {wanted}, not {path}: leave out "
            "--endpoint, or pass --backend openai for the API of the endpoint"
        )
    if api == "/chat/completions" and subject.engine.max_tokens_field:
        return Chat(limit_field=subject.engine.max_tokens_field), path + subject.query
    return _APIS[api](), path + subject.query


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


def _tokenizer(profile: Profile, subject: ModelTarget) -> str:
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


def _texts(
    form: str, profile: Profile, shape: PromptShape, stream: RandomStream, seed: Seed, tokenizer: str
) -> Prompts:
    """Texts as other clients make them.

    A seed that the user chose goes to their generator as it is; a drawn one is mixed with profile and repeat,
    as for ids.
    """
    if profile.num_prompts is None and shape.num_prompts == profile.most_prompts:
        raise UsageError(f"--duration with {form} needs --num-prompts: texts are all built beforehand")
    own = seed.chosen and seed.repeat == 0 and stream.purpose == "measure"
    text_seed = seed.value if own else stream.key("text") % 2**_SEED_BITS
    return text_prompts(form, shape, tokenizer, text_seed)


def _fields(profile: Profile, engine: Engine, dialect: Dialect) -> tuple[dict[str, Any], list[str]]:
    """The fields of every body other than prompt and length, and notes on what it cannot hold."""
    sampling, more, notes = profile.sampling, dict[str, Any](), []
    if profile.ignore_eos and engine.takes_ignore_eos:
        sampling["ignore_eos"] = True
    elif profile.ignore_eos and engine.forces_length:
        more["generation_config"] = engine.forces_length
        notes.append(
            f"ignore_eos is not sent: {engine.name} refuses it; "
            "its generation_config without an end of sequence does the same"
        )
    elif profile.ignore_eos:
        notes.append(f"ignore_eos is not sent: {engine.name} refuses it, so answers may be shorter")
    if profile.chat_template_kwargs:
        if not isinstance(dialect, Chat):
            raise UsageError("--chat-template-kwargs goes with the chat API: use --backend openai-chat")
        more["chat_template_kwargs"] = profile.chat_template_kwargs
    fields = dialect.fields(sampling, profile.stream, profile.continuous_usage)
    return merged({**fields, **more}, profile.extra_body), notes


def merged(fields: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with others over them; where both have a table under a name, the tables merged so."""
    tables = {
        name: {**fields[name], **table}
        for name, table in over.items()
        if isinstance(table, dict) and isinstance(fields.get(name), dict)
    }
    return {**fields, **over, **tables}
