"""Acceptance: what a server takes of a plan is learned and checked before the run.

What it refuses of a request is left out of every request; what it could not take whole is refused.

Hosted APIs and gateways refuse fields that engines take. An unproven server is tried with one request of the
warm-up's kind; any other only once it has refused a warm-up. No run is adapted while it is measured.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base import signals, untrusted
from loadgen.base.arrays import Int64
from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.signals import Interrupts
from loadgen.base.text import format_count, list_first, quote_value
from loadgen.engines import refusals
from loadgen.engines.refusals import FIELDS, REFUSING, Adaptation, AdaptedField, Refusal
from loadgen.plan import plan
from loadgen.plan.plan import Plan
from loadgen.plan.planned_requests import PromptRequests
from loadgen.plan.request_sources import ModelTarget
from loadgen.records.record import Records
from loadgen.run.command.progress import Display
from loadgen.run.firing import Outcome, TransportOptions, Watch
from loadgen.run.live_display import choose_display
from loadgen.run.measurement import measure
from loadgen.server import control
from loadgen.server.control import ServerInfo, ServerProbe
from loadgen.server.exchange import DENIED, ControlAnswer, ServerAddress
from loadgen.settings import data_settings
from loadgen.wire.openai import ANSWER_LIMITS, Completions, Dialect
from loadgen.wire.sse import join_lines

_LOG = logging.getLogger("loadgen")
# Small requests with this text try what a server takes.
TEXT = "hello"
_TOKENS = 4  # of a prompt in ids
# A grey PNG of 64 pixels each way: models of vision refuse images that are smaller than a patch.
_GREY_IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAEAAAABACAAAAACPAi4CAAAAKUlEQVR4nO3MQREAAAwCIKMb3RD77SAA"
    "6VEEAoFAIBAIBAKBQCAQfA8G320AeUC9G5AAAAAASUVORK5CYII="
)
_LIMITS = ("min_tokens", *ANSWER_LIMITS, "max_output_tokens")
_SYSTEMS = ("system", "instructions")  # where an API has the system prompt apart from its messages
_OWN_FIELDS = ("messages", "prompt", "input", "stop", "seed", *_LIMITS, *_SYSTEMS)
_IMAGE_PART = re.compile(rb'"(?:image_url|input_image)"|"type":"image"')
_TRIAL_S = 60.0  # for the first byte of an answer
_MOST_TRIALS = 16  # more than there are fields that can be left out or renamed
_NO_SUCH_PATH = (404, 405)  # not found, method not allowed
_IDS = [10, 11, 12]  # in any vocabulary
_ANSWER_S = 60.0
_MOST_NAMES = 10  # of models, in a message
_FEW_SLOTS = (
    "the server has %d slots for %d requests at once: the others will wait in its queue "
    "(--max-running; llama-server: --parallel)"
)
_SHORT_CONTEXT = (
    "the server was started for a context of %d tokens (--context-len) and has %d: llama-server takes no "
    "more than the model was trained with (--server-args '--override-kv ARCHITECTURE.context_length=int:N')"
)
_NO_TOOLS = (
    "the model's chat template has no place for tools, so the server may leave them out of the prompts "
    "(llama-server: --jinja --chat-template-file)"
)
_CONTEXT = "start the server with a larger context (--context-len; vLLM: --max-model-len)"
# Users can do this if rows are too long, by the kind of the data.
_FIXES = {
    "random": "lower --random-input-len or --random-output-len",
    "random_turns": "lower --turns, --random-input-len or --random-output-len, or {context}",
    "prefix_repetition": "lower --prefix-repetition-prefix-len, -suffix-len or -output-len",
    **dict.fromkeys(
        ("trace", "timed_trace"),
        "pass --trace-max-input-len N, with --trace-too-long clip to cut them, or {context}",
    ),
}
_ROWS = "lower --output-len, leave those rows out of the file, or {context}"


class Adapter(msgspec.Struct, frozen=True):
    """Learns which request fields a server refuses, and removes them from plans; `known` by request form."""

    access: ServerAddress
    subject: ModelTarget
    known: dict[str, Adaptation]
    check_alive: Callable[[bool], None]  # raises ServerDied where the server that just failed has ended
    interrupts: Interrupts
    title: str  # of the display while the warm-up runs
    quiet: bool = True
    accepted: Adaptation | None = None  # what is known to be taken, by a server that is warm

    def warm_up(self, made: Plan, options: TransportOptions, display: Display) -> tuple[Plan, Records]:
        """Send the warm-up, if any; return the plan without refused fields, and the warm-up's records.

        Nothing is sent if what the server takes is known; without a warm-up, small requests try an unproven
        server and the plan's features. Raises MeasureError where all requests failed or a refused field is
        needed, ServerDied where all failed and the server has ended, Stopped on a signal.
        """
        if self.accepted is not None:
            return made.apply_adaptation(self.accepted), Records.from_records([])
        made = self._adapt_to_features(made)
        if made.dialect.keeps_history:
            self._check_history(made)
        if not made.profile.warmups:
            return (self.adapt(made) if self.subject.engine.unproven else made), Records.from_records([])
        warmup = replace(plan.make_warmup(made.profile, self.subject, made.seed, like=made), salt=made.salt)
        outcome = self.try_requests(
            warmup, options, lambda: Watch(display, self.title, interrupts=self.interrupts, reaps=False)
        )
        failures = outcome.records.failed
        if len(failures) == len(outcome.records):
            self.check_alive(True)  # why it died explains more
            first = failures[0]
            raise MeasureError(f"every warm-up request failed, the first with {first.kind}: {first.detail}")
        return made.apply_adaptation(self.known[_make_key(made)]), outcome.records

    def try_requests(self, asked: Plan, options: TransportOptions, watch: Callable[[], Watch]) -> Outcome:
        """Send a plan before a run, again without refused fields if all is refused; return the last outcome.

        `known` then has those fields. Raises MeasureError where one cannot be left out, Stopped on a signal.
        """
        key = _make_key(asked)
        asked = asked.apply_adaptation(self.known.get(key, Adaptation()))
        # The statuses of errors whose body may name the refused field.
        explained = {*REFUSING, *DENIED, *(_NO_SUCH_PATH if self.subject.engine.unproven else ())}
        while True:
            outcome = measure(asked, options, watch())
            if outcome.signal:
                raise signals.Stopped(outcome.signal)
            records, before = outcome.records, asked.adaptation
            if records.ok.any():
                self.known[key] = before
            elif set(records.http_status.tolist()) <= explained:
                self.known[key] = self._learn(asked)
                asked = asked.apply_adaptation(self.known[key])
            if asked.adaptation == before:
                return outcome

    def adapt(self, made: Plan) -> Plan:
        """Return the plan without the fields that the server refuses, by trying until it accepts a request.

        The server is tried once for all plans of one form. Raises MeasureError where it refuses the key, or a
        field that cannot be left out.
        """
        key = _make_key(made)
        if key not in self.known:
            self.known[key] = self._learn(made, unnamed=True)
        return made.apply_adaptation(self.known[key])

    def _adapt_to_features(self, made: Plan) -> Plan:
        """Return the plan without fields refused of a small body for each set of its features (tools, …).

        They are tried once for all plans of one form. Raises MeasureError where the server refuses a feature.
        """
        trials = TrialBodies(made)
        key = f"{_make_key(made)} with {' '.join(trials.names)}"
        if not trials.names:
            return made
        if key not in self.known:
            self.known[key] = made.adaptation
            for i in range(len(trials.input_lens)):
                self.known[key] = self._find_adaptation(_make_trial(made, trials), i, self.known[key])
        return made.apply_adaptation(self.known[key])

    def _check_history(self, made: Plan) -> None:
        """Raise MeasureError if the server does not keep an answer for the turn after it.

        Two small requests find out: the answer to the first one must have what the second one needs of it.
        Nothing is known if the first one fails, which the warm-up explains.
        """
        trial, limit_s = _make_trial(made, TrialBodies(made)), _choose_limit_s(made)
        fix = f"{made.dialect.history_needs}, or pass --assistant live"
        body = {**trial.payload(0), "stream": False}
        answer = control.send_request(self.access, trial.path, body, limit_s)
        try:
            lines = join_lines(answer.body)
            if answer.status != 200 or any(each.error for each in made.dialect.read_messages(lines)):
                return
            state = made.dialect.read_state(lines)
        except untrusted.NOT_JSON:
            return
        if state is None:
            url = self.access.shown_url + trial.path.partition("?")[0]
            raise MeasureError(f"{url} keeps no history of sessions (its response has no id): {fix}")
        body = made.dialect.continue_request(body, state)
        answer = control.send_request(self.access, trial.path, body, limit_s)
        if answer.status != 200:
            raise self._make_error(trial, "keeps no history of sessions", answer, fix)

    def _learn(self, made: Plan, unnamed: bool = False) -> Adaptation:
        """Try one small request of the plan's kind; return the plan's adaptation with refused fields added.

        Raises MeasureError where one cannot be left out; `unnamed`: also if the error names no field.
        """
        if made.facts.kind != data_settings.RANDOM:
            return self._find_adaptation(_make_trial(made, TrialBodies(made)), 0, made.adaptation, unnamed)
        one = made.profile.model_copy(update={"num_warmups": 1})
        trial = replace(plan.make_warmup(one, self.subject, made.seed), salt=made.salt)
        return self._find_adaptation(trial, 0, made.adaptation, unnamed)

    def _find_adaptation(
        self, asked: Plan, i: int, adaptation: Adaptation, unnamed: bool = False
    ) -> Adaptation:
        """Send request i until it is not refused; return `adaptation` with each refused field added.

        Ends without an error if a refusal names no field (`unnamed`: raises) and after 16 trials; logs each
        field. Raises MeasureError where the feature or field cannot be left out, or for a wrong key or path.
        """
        limit_s = _choose_limit_s(asked)
        for _ in range(_MOST_TRIALS):
            trial = asked.apply_adaptation(adaptation)
            body = trial.payload(i)
            with choose_display(self.quiet).waiting("asking what the server takes of a request", limit_s):
                answer = control.send_request(self.access, trial.path, body, limit_s, begin_only=True)
            refusing = answer.status in REFUSING
            found = refusals.read_refusals(answer.body, refusals.list_paths(body)) if refusing else ()
            fields = [field for refusal in found if (field := self._adapt_field(refusal, trial, answer))]
            if not fields and (feature := refusals.find_feature(answer.status, answer.body, body)):
                where = trials.name_row(i) if isinstance(trials := asked.requests, TrialBodies) else ""
                fix = f"{where} needs it; {feature.advice}" if where else feature.advice
                raise self._make_error(trial, f"refuses {feature.name}", answer, fix)
            if not refusing:
                if answer.status in DENIED:
                    raise MeasureError(self.access.explain_denial(answer))
                if answer.status in _NO_SUCH_PATH:
                    chat = (
                        ""
                        if "/chat/" in trial.path
                        else ", or pass --backend openai-chat if it has only chat"
                    )
                    fix = f"check --base-url and --model{chat}"
                    raise self._make_error(trial, "does not exist, or not for this model", answer, fix)
                break
            if not fields and (found or unnamed):
                name = found[0].name if found else ""
                fix = refusals.suggest_removal(name, trial.profile.extra_body)
                raise self._make_error(trial, f"refuses {name or 'the request'}", answer, fix)
            if not fields:
                break
            for field in fields:
                adaptation = replace(adaptation, fields=(*adaptation.fields, field))
                _LOG.warning("%s: %s", field, field.why)
        return adaptation

    def _adapt_field(self, refusal: Refusal, trial: Plan, answer: ControlAnswer) -> AdaptedField | None:
        """Return how to omit or rename a refused field.

        None if it is unknown, set by --extra-body, needed, renamed already, or not clearly refused.
        """
        name, known = refusal.name, FIELDS.get(refusal.name)
        if known is None or not refusal.clear or name.partition(".")[0] in trial.profile.extra_body:
            return None
        why = self._explain_answer(answer)
        if known.instead:
            tried = {field.name for field in trial.adaptation.fields if field.sent_as}
            return None if known.instead in tried else AdaptedField(name=name, sent_as=known.instead, why=why)
        return AdaptedField(name=name, why=why) if known.cost else None

    def _make_error(self, trial: Plan, what: str, answer: ControlAnswer, fix: str) -> MeasureError:
        url = self.access.shown_url + trial.path.partition("?")[0]
        return MeasureError(f"{url} {what} ({self._explain_answer(answer)}): {fix}")

    def _explain_answer(self, answer: ControlAnswer) -> str:
        """Return the status and the server's message, without secrets."""
        return self.access.secrets.hide(refusals.format_message(answer.status, answer.body))


class TrialBodies:
    """Small requests, one for each set of features that a plan's bodies use, at least one.

    `names` has the features of the plan, by the request that asks for them first.
    """

    format = "trial"

    def __init__(self, made: Plan) -> None:
        self._made = made
        self.names: dict[str, int] = getattr(made.requests, "features", {})
        self._places = sorted(set(self.names.values())) or [0]
        self.input_lens: Int64 = np.full(len(self._places), _TOKENS, np.int64)
        self.output_lens = np.full(len(self._places), max(1, made.profile.min_tokens or 0), np.int64)

    def request(self, i: int, dialect: Dialect, model: str) -> dict[str, Any]:
        """Make a body with the features of one of the plan's, and a short text in place of its messages.

        Any image is a grey square of 64 pixels, any system prompt the same short text.
        """
        place, length = self._places[i], int(self.output_lens[i])
        if isinstance(self._made.requests, PromptRequests):
            own = self._made.requests.prompt(place)
            short = TEXT if isinstance(own, str) else own[-1:] * _TOKENS
            fields = dialect.make_request(model, short, length)
            return self._made.requests.add_fields(place, dialect, fields)
        raw = msgspec.json.encode(self._made.requests.request(place, dialect, model))
        row: dict[str, Any] = msgspec.json.decode(raw)
        kept = {name: value for name, value in row.items() if name not in _OWN_FIELDS}
        if not dialect.chat:
            prompt = row.get("prompt")
            short = prompt[-1:] * _TOKENS if isinstance(prompt, list) else TEXT
            return {**dialect.make_request(model, short, length), **kept}
        message: dict[str, Any] = {"role": "user", "content": TEXT}
        if _IMAGE_PART.search(raw):
            image = {"type": "image_url", "image_url": {"url": _GREY_IMAGE}}
            message["content"] = [{"type": "text", "text": TEXT}, image]
        roles = [each.get("role") for each in row.get("messages", ())]
        asks = not {*_SYSTEMS}.isdisjoint(row) or roles[:1] == ["system"]
        messages = [*([{"role": "system", "content": TEXT}] if asks else ()), message]
        body = {"model": model, "messages": messages, dialect.limit_field: length}
        return {**dialect.convert_chat(body), **kept}

    def name_row(self, i: int) -> str:
        """Name the file's row whose features the body has, as `data.jsonl row 17`; "" without a file."""
        where = getattr(self._made.requests, "name_row", None)
        return "" if where is None else str(where(self._places[i]))

    def digest(self) -> str:
        """Return "", since no trial is compared with another."""
        return ""


def _make_trial(made: Plan, trials: TrialBodies) -> Plan:
    """Return the plan with small trial requests in place of its own."""
    return replace(made, requests=trials, count=len(trials.input_lens), turns=None)


def _make_key(made: Plan) -> str:
    """Make a key that is equal for plans whose requests have one path and the same fields."""
    profile = made.profile
    more = (*made.salt, *profile.sampling, *profile.extra_body, *profile.chat_template_kwargs)
    switches = (profile.stream, profile.ignore_eos, profile.continuous_usage)
    return " ".join((made.path, *map(str, switches), *sorted(more)))


def _choose_limit_s(trial: Plan) -> float:
    """Return how many seconds to wait for an answer's first byte: 60, or the profile's timeouts if less."""
    profile = trial.profile
    return min(limit for limit in (_TRIAL_S, profile.request_timeout, profile.stall_timeout) if limit)


def check_takes_ids(probe: ServerProbe, served: ServerInfo) -> ServerInfo:
    """Return a server's description, without `takes_ids` if it refuses a prompt of ids or counts it as text.

    One such prompt is sent to an engine that takes ids in some versions alone, if it reports its version;
    after any other answer, and of any other server, the description is unchanged.
    """
    if not served.engine.asked_for_ids or not served.version:
        return served
    access, dialect = probe.access, Completions()
    path = f"{access.prefix}{dialect.path.removeprefix('/v1')}{access.query}"
    answer = control.send_request(access, path, dialect.make_request(served.model, _IDS, 1), _ANSWER_S)
    counted = untrusted.read_mapping(answer.object.get("usage")).get("prompt_tokens")
    if answer.status not in REFUSING and counted in (None, len(_IDS)):
        return served
    return replace(served, engine=replace(served.engine, takes_ids=False))


def check_sendable(made: Plan, served: ServerInfo, started_context: int = 0) -> None:
    """Raise MeasureError or UsageError if the server would refuse requests of a plan; warn of other limits.

    `started_context` is the context in tokens that the server was started for; 0: it was not started here.
    """
    check_models(made, served)
    check_lengths(made, served.max_model_len)
    if 0 < served.max_model_len < started_context:
        _LOG.warning(_SHORT_CONTEXT, started_context, served.max_model_len)
    streams = made.profile.held_concurrency or 0
    if 0 < served.slots < streams:
        _LOG.warning(_FEW_SLOTS, served.slots, streams)
    if served.without_tools and "tools" in getattr(made.requests, "features", {}):
        _LOG.warning(_NO_TOOLS)


def check_models(made: Plan, served: ServerInfo) -> None:
    """Raise MeasureError for the first row's model that is not listed by a server which checks models."""
    lists = served.engine.checks_model and served.engine.lists_its_model and served.models
    models: dict[str, int] = getattr(made.requests, "models", {})  # of rows, each with its first one's index
    others = {name: i for name, i in models.items() if name not in served.models}
    if not lists or not others:
        return
    name = min(others, key=others.__getitem__)
    more = f", and {format_count(len(others) - 1, 'more model')} like it" if len(others) > 1 else ""
    raise MeasureError(
        f"{_name_request(made, others[name])} asks for the model {quote_value(name)}{more}; "
        f"{served.engine.name} serves "
        f"{list_first(served.models, _MOST_NAMES)}: change the name, or leave `model` out of the rows for "
        f"{quote_value(made.model)}"
    )


def check_lengths(made: Plan, limit: int) -> None:
    """Raise MeasureError for a request too long for the model, UsageError for --min-tokens above an answer.

    `limit` is in tokens, prompt and answer together; 0: not known, and no request is too long. A length that
    only the server counts is 0.
    """
    least = made.profile.min_tokens
    asked = made.requests.output_lens[: len(made)]
    too_few = np.flatnonzero((asked > 0) & (asked < (least or 0)))
    if len(too_few):
        first = int(too_few[0])
        raise UsageError(
            f"--min-tokens {least} is more than the {asked[first]} tokens that a request asks for "
            f"({_name_request(made, first)}): lower it, or have every response as long by --output-len"
        )
    if not 0 < limit < made.longest:
        return
    totals = _known_lens(made.requests.input_lens, made) + _known_lens(made.requests.output_lens, made)
    longest, count = int(totals.argmax()), int((totals > limit).sum())
    fix = _FIXES.get(made.facts.kind, _ROWS).format(context=_CONTEXT)
    if made.facts.kind == data_settings.RANDOM:
        raise MeasureError(
            f"the longest request needs {totals[longest]} tokens but {made.model} accepts {limit}: {fix}"
        )
    are = "1 request needs" if count == 1 else f"{count:,} requests need"
    raise MeasureError(
        f"{are} more tokens than the {limit} that {made.model} accepts, the longest {totals[longest]} "
        f"({_name_request(made, longest)}): {fix}"
    )


def _known_lens(lens: Int64, made: Plan) -> Int64:
    """Return the planned lengths in tokens, 0 where only the server counts them."""
    return np.maximum(lens[: len(made)], 0)


def _name_request(made: Plan, i: int) -> str:
    """Name a request by its row in the file, from 1, or else by its place in the plan, from 0."""
    name_row = getattr(made.requests, "name_row", None)
    return f"request {i}" if name_row is None else str(name_row(i))
