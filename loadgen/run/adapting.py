"""Adapting: what a server refuses of a request is learned before the run, and left out of every request.

Hosted APIs and gateways refuse fields that engines take. A server of which it is not known is asked with one
request of the warm-up's kind; any other only once it has refused a warm-up. A measured run is never adapted
while it is under way.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from http import HTTPStatus

import msgspec
from msgspec.structs import replace

from loadgen.base.errors import MeasureError
from loadgen.engines import refusals
from loadgen.engines.refusals import FIELDS, REFUSING, Adaptation, AdaptedField, Refusal
from loadgen.figures.record import Records
from loadgen.plan import plan, request_sources
from loadgen.plan.plan import Plan
from loadgen.plan.plan_inputs import ModelTarget
from loadgen.plan.trial_bodies import TrialBodies
from loadgen.run import signals
from loadgen.run.measure import Outcome, TransportOptions, Watch, measure
from loadgen.run.progress import Display, display
from loadgen.run.signals import Interrupts
from loadgen.server import control
from loadgen.server.discovery import ServerAddress
from loadgen.server.exchange import DENIED, ControlAnswer

_LOG = logging.getLogger("loadgen")
_TRIAL_S = 60.0  # for the first byte of an answer
_MOST_TRIALS = 16  # more than there are fields that can be left out or renamed
_NO_SUCH_PATH = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)


class Adapter(msgspec.Struct, frozen=True):
    """Learns what one server takes of a plan's requests; `known` has what was learned, by form of request."""

    access: ServerAddress
    tls: ssl.SSLContext | None
    subject: ModelTarget
    known: dict[str, Adaptation]
    check_alive: Callable[[bool], None]  # raises ServerDied where the server that just failed has ended
    interrupts: Interrupts
    title: str  # of the display while the warm-up runs
    quiet: bool = True

    def warmed_up(self, made: Plan, options: TransportOptions, display: Display) -> tuple[Plan, Records]:
        """The plan as this server takes it, and what came of the warm-up.

        Raises MeasureError where every request of the warm-up failed, or what is refused cannot be left out.
        """
        made = self._featured(made)
        if not made.profile.warmups:
            return (self.adapted(made) if self.subject.engine.unproven else made), Records.of([])
        warmup = plan.make_warmup(made.profile, self.subject, made.seed, like=made)
        outcome = self.tried(warmup, options, lambda: Watch(display, self.title, interrupts=self.interrupts))
        failures = outcome.records.failed
        if len(failures) == len(outcome.records):
            self.check_alive(True)  # why it died explains more
            first = failures[0]
            raise MeasureError(f"every warm-up request failed, the first with {first.kind}: {first.detail}")
        return made.adapted(self.known[_key(made)]), outcome.records

    def tried(self, asked: Plan, options: TransportOptions, watch: Callable[[], Watch]) -> Outcome:
        """The outcome of requests before a run; where all are refused, of the same without what is.

        What the server took is remembered. Raises MeasureError where what is refused cannot be left out.
        """
        key = _key(asked)
        asked = asked.adapted(self.known.get(key, Adaptation()))
        while True:
            outcome = measure(asked, options, watch())
            if outcome.signal:
                raise signals.Stopped(outcome.signal)
            records, before = outcome.records, asked.adaptation
            if records.ok.any():
                self.known[key] = before
            elif set(records.http_status.tolist()) <= self._telling:
                self.known[key] = self._learned(asked)
                asked = asked.adapted(self.known[key])
            if asked.adaptation == before:
                return outcome

    def adapted(self, made: Plan) -> Plan:
        """The plan without what the server refuses of its requests, by asking until it takes one.

        It is asked once for all plans of one form. Raises MeasureError where it refuses the key, or a field
        that cannot be left out.
        """
        key = _key(made)
        if key not in self.known:
            self.known[key] = self._learned(made, unnamed=True)
        return made.adapted(self.known[key])

    @property
    def _telling(self) -> set[int]:
        """Statuses of an answer whose body may name the cause."""
        return {*REFUSING, *DENIED, *(_NO_SUCH_PATH if self.subject.engine.unproven else ())}

    def _featured(self, made: Plan) -> Plan:
        """The plan, once the server took a small body for each set of features that its bodies ask for.

        Raises MeasureError where it refuses one of them: tools, images, a schema, token ids.
        """
        trials = TrialBodies(made)
        key = f"{_key(made)} with {' '.join(trials.names)}"
        if not trials.names:
            return made
        if key not in self.known:
            self.known[key] = made.adaptation
            for i in range(len(trials.input_lens)):
                self.known[key] = self._taken(_trial(made, trials), i, self.known[key])
        return made.adapted(self.known[key])

    def _learned(self, made: Plan, unnamed: bool = False) -> Adaptation:
        """As `adapted`; `unnamed`: raises also where the error names no field of the request."""
        if made.facts.kind != request_sources.RANDOM:
            return self._taken(_trial(made, TrialBodies(made)), 0, made.adaptation, unnamed)
        one = made.profile.model_copy(update={"num_warmups": 1})
        return self._taken(plan.make_warmup(one, self.subject, made.seed), 0, made.adaptation, unnamed)

    def _taken(self, asked: Plan, i: int, adaptation: Adaptation, unnamed: bool = False) -> Adaptation:
        """What must be left out of a request for the server to take it, by asking until it does."""
        for _ in range(_MOST_TRIALS):
            trial = asked.adapted(adaptation)
            body = trial.payload(i)
            with display(self.quiet).waiting("asking what the server takes of a request", _limit_s(trial)):
                answer = control.try_request(self.access, self.tls, trial.path, body, _limit_s(trial))
            refusing = answer.status in REFUSING
            found = refusals.read_refusals(answer.body, refusals.list_paths(body)) if refusing else ()
            fields = [field for refusal in found if (field := self._field(refusal, trial, answer))]
            if not fields and (feature := refusals.find_feature(answer.status, answer.body, body)):
                where = trials.where(i) if isinstance(trials := asked.requests, TrialBodies) else ""
                fix = f"{where} needs it; {feature.advice}" if where else feature.advice
                raise self._error(trial, f"refuses {feature.name}", answer, fix)
            if not refusing:
                self._check(trial, answer)
                break
            if not fields and (found or unnamed):
                raise self._unadaptable(found, trial, answer)
            if not fields:
                break
            for field in fields:
                adaptation = adaptation.add_field(field)
                _LOG.warning("%s: %s", field, field.why)
        return adaptation

    def _field(self, refusal: Refusal, trial: Plan, answer: ControlAnswer) -> AdaptedField | None:
        """What is done without a refused field; None where the user gave it, or a run cannot go without."""
        name, known = refusal.name, FIELDS.get(refusal.name)
        if known is None or not refusal.clear or name.partition(".")[0] in trial.profile.extra_body:
            return None
        why = self._why(answer)
        if known.instead:
            tried = {field.name for field in trial.adaptation.fields if field.sent_as}
            return None if known.instead in tried else AdaptedField(name=name, sent_as=known.instead, why=why)
        return AdaptedField(name=name, why=why) if known.cost else None

    def _unadaptable(self, found: tuple[Refusal, ...], trial: Plan, answer: ControlAnswer) -> MeasureError:
        """The refusal as an error that names the field and what to type."""
        name = found[0].name if found else ""
        what = f"refuses {name}" if name else "refuses the request"
        return self._error(trial, what, answer, refusals.suggest_removal(name, trial.profile.extra_body))

    def _check(self, trial: Plan, answer: ControlAnswer) -> None:
        """Raises MeasureError of an answer after which no request can succeed: about the key, or the path."""
        if answer.status in DENIED:
            raise MeasureError(self.access.explain_denial(answer))
        if answer.status in _NO_SUCH_PATH:
            chat = "" if "/chat/" in trial.path else ", or pass --backend openai-chat if it has only chat"
            fix = f"check --base-url and --model{chat}"
            raise self._error(trial, "does not exist, or not for this model", answer, fix)

    def _error(self, trial: Plan, what: str, answer: ControlAnswer, fix: str) -> MeasureError:
        url = self.access.shown_url + trial.path.partition("?")[0]
        return MeasureError(f"{url} {what} ({self._why(answer)}): {fix}")

    def _why(self, answer: ControlAnswer) -> str:
        """The status and the server's message, without secrets."""
        return self.access.secrets.hide(refusals.format_message(answer.status, answer.body))


def _trial(made: Plan, trials: TrialBodies) -> Plan:
    """The plan with small requests in place of its own."""
    return replace(made, requests=trials, count=len(trials.input_lens), turns=None)


def _key(made: Plan) -> str:
    """What two plans share whose requests have the same fields."""
    profile = made.profile
    more = (*profile.sampling, *profile.extra_body, *profile.chat_template_kwargs)
    switches = (profile.stream, profile.ignore_eos, profile.continuous_usage)
    return " ".join((made.path, *map(str, switches), *sorted(more)))


def _limit_s(trial: Plan) -> float:
    """How long the first byte of an answer may take, in seconds."""
    profile = trial.profile
    return min(limit for limit in (_TRIAL_S, profile.request_timeout, profile.stall_timeout) if limit)
