"""Plan: every request to the server and when it is due, complete before the first byte."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, cast

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Int64
from loadgen.base.clock import SECOND_NS
from loadgen.base.errors import UsageError
from loadgen.engines.engine import Engine
from loadgen.engines.refusals import Adaptation
from loadgen.features.images import image_requests
from loadgen.plan import prompt_texts
from loadgen.plan.arrival import draw_offsets_ns, make_process
from loadgen.plan.planned_requests import (
    RECORDED,
    UNKNOWN_LEN,
    Cancellations,
    ConcurrencySteps,
    DataFacts,
    LengthFacts,
    Requests,
    TurnRequests,
    Turns,
    merge_fields,
)
from loadgen.plan.profile import Profile, check_body, has_images
from loadgen.plan.request_sources import (
    MADE,
    WORDS,
    ModelTarget,
    PlanInputs,
    Purpose,
    RandomStream,
    Seed,
    SourcedRequests,
    find_source,
    make_arrival_rng,
)
from loadgen.settings.data_settings import FILE, RANDOM, SOURCES
from loadgen.settings.load_settings import CancelPoint, ShapeKeys, parse_cancel_rate
from loadgen.settings.request_settings import API_PATHS
from loadgen.settings.session_settings import check_requests
from loadgen.settings.setting import list_rows
from loadgen.settings.table import SOURCE_KEYS
from loadgen.settings.validation import find_flag
from loadgen.wire.openai import Chat, Completions, Dialect

_USUAL_S = 5  # of a request
_USUAL_LENS = {"input_len": 64, "output_len": 16}  # of a warm-up, where only the server counts
_RATE_INSTEAD = "--cancel-rate takes the place of the cancellations that the trace recorded"
_ENDS = "requests are sent for {:g} s; those still running then are finished"
# A profile whose prompts are made here, each request of its own, at a load that does not change.
_PLAIN = {row.name: row.default for row in list_rows(*SOURCE_KEYS, ShapeKeys)}
_COMPARED_PROMPTS, _COMPARED_WITH_IMAGES = 2048, 32
_NEVER_EQUAL_IDS = 8  # of a thousand ids or more: a chance of 10⁻¹⁸ among _COMPARED_PROMPTS
# API paths end like this, so an endpoint of one's own is known too: the longer of two comes first.
_OPENAI: dict[str, Callable[[], Dialect]] = {"/chat/completions": Chat, "/completions": Completions}
_ENDINGS = tuple(dict.fromkeys([*_OPENAI, *API_PATHS.values()]))


class Plan(msgspec.Struct, frozen=True):
    """All requests of one profile, 0…n−1: what they hold, how long they are, when they are due."""

    profile: Profile
    seed: Seed
    requests: Requests
    count: int  # of `requests` that are planned: the first of them
    offsets_ns: Int64 | None  # int64[count], of sessions int64[sessions]; None: closed loop
    dialect: Dialect
    path: str
    model: str
    fields: dict[str, Any]  # of every body, laid over those of each request
    facts: DataFacts = DataFacts()
    ids_source: str = ""  # where token ids are drawn from; "" for text
    notes: tuple[str, ...] = ()  # what was requested and cannot be, in words
    tokenizer: str = ""  # that made the texts, where none was named
    adaptation: Adaptation = Adaptation()  # what of the body is not as the profile has it
    sessions: Int64 | None = None  # of each request; None: there are none, each request is one of its own
    concurrency: ConcurrencySteps | None = None  # of a closed loop whose limit changes; None: it does not
    cancellations: Cancellations | None = None
    turns: Turns | None = None  # of sessions, which are sent as such; None: each request has its own time
    # This salt goes into each request without such a field of its own, so that a prefix cache gives it only
    # what this run left there. It is no part of the digest: it changes no text.
    salt: Mapping[str, str] = {}

    def __len__(self) -> int:
        return self.count

    @property
    def total(self) -> int | None:
        """The number of requests to be sent; None if only --duration limits it."""
        open_ended = self.offsets_ns is None or self.turns is not None
        return None if self.profile.duration is not None and open_ended else len(self)

    @property
    def rate_per_s(self) -> float:
        """Requests per second as planned, the mean of a trace or a schedule; inf: all at once."""
        return self.facts.rate_per_s(self.profile.mean_rate_per_s)

    @property
    def sends_recorded(self) -> bool:
        """Whether the prompts are recorded texts, the same in every run; else the seed decides them."""
        return self.facts.kind not in MADE or self.requests.format == RECORDED

    @property
    def sending_s(self) -> float | None:
        """Seconds until the last request of a changing load is due; None: constant load, or closed loop."""
        uneven = self.profile.shaped or self.facts.schedule is not None
        if not uneven or self.offsets_ns is None or not len(self.offsets_ns):
            return None
        return float(self.offsets_ns[-1]) / SECOND_NS

    @property
    def streams(self) -> int:
        """About how many requests are in flight at once, by the plan's limit, its count, and 5 s for each."""
        all_of_them = len(self) if self.turns is None else len(self.turns)
        at_once = max(min(all_of_them, self.rate_per_s * _USUAL_S), 1)
        return min(self.profile.max_concurrency or all_of_them, int(at_once))

    @property
    def divisible(self) -> tuple[str, int] | None:
        """The smallest limit that every sending process needs a share of, with its flag; None: no limit.

        Of a limit that changes it is the most: a process without a share waits for the next change.
        """
        limits = {
            "--max-concurrency": self.profile.max_concurrency,
            "--prefill-concurrency": self.profile.prefill_concurrency,
            "--max-requests": self.profile.max_requests,
        }
        given = [(most, flag) for flag, most in limits.items() if most is not None]
        return min(given)[::-1] if given else None

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt plus answer, as far as they are known."""
        inputs, outputs = self.requests.input_lens[: len(self)], self.requests.output_lens[: len(self)]
        return int((np.maximum(inputs, 0) + np.maximum(outputs, 0)).max(initial=0))

    def apply_adaptation(self, adaptation: Adaptation) -> Plan:
        """Return the plan with refused fields omitted or renamed; prompts and times stay."""
        limit, fields = adaptation.limit_field, adaptation.apply_to(self.fields)
        dialect = self.dialect.rename_limit(limit) if limit else self.dialect
        return replace(self, dialect=dialect, fields=fields, adaptation=adaptation)

    def refuses_ignore_eos(self, engine: Engine) -> bool:
        """Whether ignore_eos is set but not sent: the API lacks it, or the engine or server refuses it."""
        refused = not engine.takes_ignore_eos or "ignore_eos" in self.adaptation.left_out
        return self.profile.ignore_eos and (refused or "ignore_eos" in self.dialect.lacks)

    def payload(self, index: int) -> dict[str, Any]:
        """Return the JSON object of request `index`."""
        payload: dict[str, Any] = msgspec.json.decode(self.body(index))
        return payload

    def body(self, index: int) -> bytes:
        """Return the body of request `index` as bytes, the same each time."""
        return self._encode(self.requests.request(index, self.dialect, self.model))

    def _encode(self, request: dict[str, Any]) -> bytes:
        """Return a request's own fields, without those that the server refuses, and the plan's as bytes."""
        own = {**self.salt, **request} if self.salt else request
        own = self.adaptation.apply_to(own) if self.adaptation else own
        return msgspec.json.encode(merge_fields(own, self.fields))

    def body_after(self, index: int, answers: Sequence[dict[str, Any]]) -> bytes:
        """Return the body of request `index` with the server's own answers in its history.

        Where the server keeps that, the body has what is new in the turn, and each answer is a state.
        """
        requests, dialect = cast(TurnRequests, self.requests), self.dialect
        if dialect.keeps_history:
            request = dialect.continue_request(requests.request(index, dialect, self.model), answers[-1])
        else:
            request = requests.request_after(index, answers, dialect, self.model)
        return self._encode(request)

    def digest(self) -> str:
        """Return a hash of prompts, lengths, offsets and fields, equal for equal plans."""
        content = msgspec.json.encode([self.requests.digest(), self.path, self.fields])
        hashed = hashlib.blake2b(content, digest_size=16)
        if self.offsets_ns is not None:
            hashed.update(self.offsets_ns.astype("<i8").tobytes())
        if self.turns is not None:
            hashed.update(self.turns.begins.astype("<i8").tobytes())
            hashed.update(self.turns.delays_ns.astype("<i8").tobytes())
            if self.turns.waits is not None and self.turns.has_branches:
                waits = self.turns.waits
                for column in (waits.starts, waits.before, waits.lanes):
                    hashed.update(column.astype("<i8").tobytes())
        if self.concurrency is not None:
            hashed.update(self.concurrency.from_ns.astype("<i8").tobytes())
            hashed.update(self.concurrency.limits.astype("<i8").tobytes())
        if self.cancellations is not None:
            when = self.cancellations.list_own() or self.cancellations.point
            hashed.update(f"{when}".encode() + self.cancellations.chosen.tobytes())
        return hashed.hexdigest()


def import_source(profile: Profile) -> ModuleType:
    """Import the module whose `requests` makes a profile's requests; a run imports no other.

    Its `requests` takes PlanInputs and returns SourcedRequests, or raises UsageError if profile, file and
    server do not fit. A module that makes prompts may have `choose_form` too.
    """
    kind = find_source(profile)
    if kind == "trace":
        from loadgen.features.traces import trace_replay

        return trace_replay
    if kind == "timed_trace":
        from loadgen.features.traces import timed_trace

        return timed_trace
    if kind == "random_turns":
        from loadgen.features.sessions import synthetic_turns

        return synthetic_turns
    if kind == "prefix_repetition":
        from loadgen.features.data import listed_texts

        return listed_texts
    if kind == "sharegpt":
        from loadgen.features.data import sharegpt

        return sharegpt
    if kind == "custom":
        from loadgen.features.data import custom

        return custom
    if kind == FILE:
        from loadgen.features.data import file_prompts

        return file_prompts
    return prompt_texts


def make(profile: Profile, subject: ModelTarget, seed: Seed) -> Plan:
    """Make the measured plan of a profile; raises UsageError if the profile and the server do not fit."""
    return _make_plan(profile, subject, seed, "measure")


def make_warmup(profile: Profile, subject: ModelTarget, seed: Seed, like: Plan | None = None) -> Plan:
    """Make a profile's warm-up plan: waves of random prompts, in a closed loop, never used again.

    Requests of a file are not sent in it: they would then be in the prefix cache. Its prompts are as long as
    the median of those in the plan `like`, and text where those are.
    """
    if like is not None and find_source(profile) != RANDOM:
        lens = {"input_len": like.facts.input, "output_len": like.facts.output}
        halves = {key: _USUAL_LENS[key] if lengths is None else lengths.p50 for key, lengths in lens.items()}
        fixed = {"range_ratio": "0", "prefix_len": 0, "prefix_groups": 1, "input_dist": "", "output_dist": ""}
        text = subject.engine.unproven and not like.ids_source
        profile = profile.model_copy(update=halves | fixed | ({"prompt_format": WORDS} if text else {}))
    count = profile.warmups
    wave = min(count, profile.max_concurrency or count)
    update = {"num_prompts": count, "max_concurrency": wave, "request_rate": math.inf, "duration": None}
    return _make_plan(profile.model_copy(update=update | _PLAIN), subject, seed, "warmup")


def is_counted_by_server(profile: Profile, subject: ModelTarget) -> bool:
    """Whether a plan needs the server's count of words, not known yet, for prompts that are made of them."""
    if subject.word_counts is not None or not SOURCES[find_source(profile)].is_made:
        return False
    choose_form = getattr(import_source(profile), "choose_form", None)
    return (
        choose_form is not None
        and choose_form(profile, subject, choose_dialect(profile, subject)[0]) == WORDS
    )


def count_repeated_prompts(plan: Plan) -> int:
    """Count requests whose prompt equals an earlier one's; of random texts in the first 2048, with images 32.

    Token ids are drawn apart for each prompt: two of n prompts of length L are equal by a chance of n² / 2 in
    (ids allowed)^L, which only a length of one or two makes likely.
    """
    if plan.facts.kind != RANDOM:
        return plan.facts.repeated
    if plan.ids_source and int(plan.requests.input_lens.min()) >= _NEVER_EQUAL_IDS:
        return 0
    compared = min(len(plan), _COMPARED_PROMPTS if plan.facts.images is None else _COMPARED_WITH_IMAGES)
    return compared - len({plan.body(i) for i in range(compared)})


def _make_plan(profile: Profile, subject: ModelTarget, seed: Seed, purpose: Purpose) -> Plan:
    """Make a profile's plan for a purpose; only a measured one has cancellations; raises UsageError."""
    check_body(profile)
    dialect, path = choose_dialect(profile, subject)
    stream = RandomStream(seed.value, profile.name, seed.repeat, purpose, seed.attempt)
    inputs = PlanInputs(profile, subject, seed, stream, dialect, profile.num_prompts)
    sourced, offsets_ns, schedule_notes = _make_schedule(inputs)
    if has_images(profile):
        sourced = image_requests.add_contents(sourced, inputs)
    made = sourced.requests
    turns = sourced.turns
    check_requests(profile.__dict__, sourced.facts.kind, None if turns is None else turns.has_branches)
    if turns is not None:  # of sessions that begin within the plan
        begun = len(turns) if offsets_ns is None else len(offsets_ns)
        turns = turns.take_first(begun).scale_delays(profile.delay_factor)
    planned = made.input_lens if offsets_ns is None else offsets_ns
    count = len(planned) if turns is None else int(turns.begins[-1])
    lens = {"input": made.input_lens, "output": made.output_lens}
    if dialect.needs_limit and (made.output_lens[:count] == UNKNOWN_LEN).any():
        raise UsageError(
            f"{dialect.path} needs a limit to each response, and some have none: pass --output-len N"
        )
    measured = {name: LengthFacts.measure(column[:count]) for name, column in lens.items()}
    facts = replace(sourced.facts, **measured)
    cancelled, point = sourced.cancellations, profile.cancel_point if purpose == "measure" else None
    replaced = (_RATE_INSTEAD,) if cancelled is not None and point is not None else ()
    if point is not None:
        cancelled = draw_cancellations(parse_cancel_rate(profile.cancel_rate), point, stream, count)
    elif cancelled is not None:
        cancelled = cancelled.take_first(count)
    fields, unsent = make_shared_fields(profile, subject.engine, dialect)
    notes = [*schedule_notes, *sourced.notes, *replaced, *unsent]
    if seed.attempt and sourced.facts.kind in MADE:
        notes.append(
            f"attempt {seed.attempt + 1}: the server may have the prompts of an earlier one in its cache, so "
            "these are others, and the plan digest is another"
        )
    return Plan(
        profile,
        seed,
        made,
        count,
        offsets_ns,
        dialect,
        path,
        subject.model,
        fields,
        facts=facts,
        ids_source=sourced.ids_source,
        notes=tuple(notes),
        tokenizer=sourced.tokenizer,
        sessions=sourced.sessions if turns is None else turns.list_sessions(),
        turns=turns,
        cancellations=cancelled,
        concurrency=profile.concurrency_steps,
    )


def draw_cancellations(rate: float, point: CancelPoint, stream: RandomStream, count: int) -> Cancellations:
    """Draw for each of a plan's requests, with the chance `rate`, whether it is cancelled.

    A longer plan from the same stream has the same requests cancelled, and more.
    """
    return Cancellations(stream.rng("cancelled").random(count) < rate, point)


def _make_schedule(inputs: PlanInputs) -> tuple[SourcedRequests, Int64 | None, list[str]]:
    """Make the requests, their due times (ns; None: closed loop), and notes on the times.

    A file says how many requests there are; of random ones as many are made as the schedule has.
    """
    profile = inputs.profile
    if find_source(profile) == RANDOM:
        offsets_ns, count, notes = _find_offsets(profile, inputs.stream, profile.most_prompts)
        return import_source(profile).requests(replace(inputs, most=count)), offsets_ns, notes
    sourced: SourcedRequests = import_source(profile).requests(inputs)
    if sourced.offsets_ns is None:
        most = len(sourced.requests.input_lens if sourced.turns is None else sourced.turns)
        offsets_ns, _, notes = _find_offsets(profile, inputs.stream, most)
        return sourced, offsets_ns, notes
    offsets_ns, notes = sourced.offsets_ns, []
    if profile.duration is not None:
        offsets_ns = offsets_ns[: np.searchsorted(offsets_ns, profile.duration_ns)]
        notes.append(_ENDS.format(profile.duration))
    return sourced, offsets_ns, notes


def _find_offsets(profile: Profile, stream: RandomStream, most: int) -> tuple[Int64 | None, int, list[str]]:
    """Return due times (ns; None: closed loop), the number of requests, `most` at most, and notes."""
    duration = profile.duration
    notes = [] if duration is None else [_ENDS.format(duration)]
    if not profile.open_loop and profile.max_concurrency is not None:
        return None, most, notes
    process = make_process(profile, most)
    if duration is None:
        return process.offsets_ns(most, make_arrival_rng(stream)), most, notes
    offsets_ns = draw_offsets_ns(profile.duration_ns, most + 1, process, lambda: make_arrival_rng(stream))
    if len(offsets_ns) > most:
        end_s = offsets_ns[most - 1] / SECOND_NS
        notes.append(f"the schedule ends after {end_s:.1f} s, with the last of {most} prompts")
        offsets_ns = offsets_ns[:most]
    return offsets_ns, len(offsets_ns), notes


def choose_dialect(profile: Profile, subject: ModelTarget) -> tuple[Dialect, str]:
    """Choose the API by --endpoint and --backend, with the engine's length field; return it and its path.

    Raises UsageError if the endpoint is of no known API, or of another one than --backend, or if the API
    keeps no history where `assistant` is the server.
    """
    wanted = API_PATHS.get(profile.backend)
    own = make_dialect(wanted or "/completions").path
    path = subject.endpoint or (subject.prefix + own.removeprefix("/v1") if own.startswith("/v1") else own)
    path = path if path.startswith("/") else f"/{path}"
    api = next((ending for ending in _ENDINGS if path.partition("?")[0].endswith(ending)), None)
    if api is None:
        raise UsageError(f"--endpoint {path}: must end in one of {', '.join(_ENDINGS)}")
    if wanted not in (None, api):
        raise UsageError(
            f"--backend {profile.backend} needs an endpoint ending in {wanted}, not {path}: leave out "
            "--endpoint, or pass --backend openai for the API of the endpoint"
        )
    if api == "/chat/completions" and subject.engine.max_tokens_field:
        dialect: Dialect = Chat(limit_field=subject.engine.max_tokens_field)
    else:
        dialect = make_dialect(api).fit_engine(subject.engine.name)
    dialect = dialect.keep_history() if profile.assistant == "server" else dialect
    return dialect, path + subject.query


def make_dialect(ending: str) -> Dialect:
    """Make the API whose path ends so; one that few servers have is imported with its first use."""
    if ending in _OPENAI:
        return _OPENAI[ending]()
    if ending == "/responses":
        from loadgen.features.apis.responses_api import Responses

        return Responses()
    if ending == "/messages":
        from loadgen.features.apis.messages_api import Messages

        return Messages()
    from loadgen.features.apis.generate_api import Generate

    return Generate()


def list_api_headers(backend: str, *paths: str | None) -> Mapping[str, str]:
    """List the headers of the API that a backend or the end of a path means; {} if it has none of its own."""
    ends = (end for path in paths if path for end in _ENDINGS if path.partition("?")[0].endswith(end))
    api = API_PATHS.get(backend) or next(ends, None)
    return {} if api is None else make_dialect(api).headers


def make_shared_fields(
    profile: Profile, engine: Engine, dialect: Dialect
) -> tuple[dict[str, Any], list[str]]:
    """Make the fields that all requests share, and notes on fields that cannot be sent; raises UsageError."""
    sampling, more, notes = profile.sampling, dict[str, Any](), []
    if lacking := [find_flag(name) for name in sampling if name in dialect.lacks]:
        raise UsageError(
            f"{dialect.path} has no field for {', '.join(lacking)}: leave it out, or use --extra-body if the "
            "server takes such a field, or --backend openai-chat"
        )
    if profile.ignore_eos and "ignore_eos" in dialect.lacks:
        notes.append(f"ignore_eos is not sent: {dialect.path} has no such field, so responses may be shorter")
    elif profile.ignore_eos and engine.takes_ignore_eos:
        sampling["ignore_eos"] = True
    elif profile.ignore_eos and engine.forces_length:
        more["generation_config"] = engine.forces_length
        notes.append(
            f"ignore_eos is not sent: {engine.name} refuses it; "
            "its generation_config without an end of sequence does the same"
        )
    elif profile.ignore_eos:
        notes.append(f"ignore_eos is not sent: {engine.name} refuses it, so responses may be shorter")
    if profile.chat_template_kwargs and dialect.chat:
        more["chat_template_kwargs"] = profile.chat_template_kwargs
    elif profile.chat_template_kwargs and (profile.dataset_name != "custom" or profile.skip_chat_template):
        # The prompts of `custom` are rendered here.
        raise UsageError("--chat-template-kwargs goes with the chat API: use --backend openai-chat")
    fields = dialect.make_fields(sampling, profile.stream, profile.continuous_usage)
    notes += dialect.list_notes()
    return merge_fields({**fields, **more}, profile.extra_body), notes
