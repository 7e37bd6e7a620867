"""Prompt counts: the tokens that a server counts in a prompt of words, asked before the run.

By vLLM's /tokenize where there is one, else by the usage of a few requests of one token each. The last
question is always a real request, of about the length that was asked for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import numpy as np
from asyncio_throttle.throttler import Throttler
from msgspec.structs import replace

from loadgen.base import untrusted
from loadgen.base.errors import MeasureError
from loadgen.engines import refusals
from loadgen.engines.refusals import REFUSING
from loadgen.plan import plan
from loadgen.plan.plan import Plan
from loadgen.plan.planned_requests import merge_fields
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import FIRST_WORD, ModelTarget, Seed, WordCounts, list_common_words
from loadgen.records.decoded_stream import count_prompt, find_fault
from loadgen.run.acceptance import Adapter
from loadgen.run.live_display import choose_display
from loadgen.server import exchange
from loadgen.server.exchange import DENIED, REDIRECTS, ControlAnswer, ServerAddress

_GROUP = 64  # words that are counted together
_EIGHTH, _FEWEST_EIGHTHS = 8, 3  # words of a group that are counted apart; how many such make prompts
_GROUPS, _FEWEST_GROUPS = 8, 2
_ROOM = 4096  # tokens that a server must take for all groups in one prompt, and twice that
_EXACT = 0.25  # of a token in a group: as near as that it is one a word
_LONGEST_CHECK, _SHORTEST_CHECK = 8192, 32  # words of the last question
_ROUNDED, _ADDED = 0.75, 2  # tokens: what a rounded count may differ; what a path may count more or less
_LEAST_PER_WORD = 0.5  # of tokens: no tokenizer makes fewer of common words, so a count below is not of them
_CUT_TOKENS, _CUT_SHARE = 16, 0.01  # what a count may lack by rounding: more, and the prompt may be cut
_JUMP_SHARE = 0.1  # of a count: how far a third one may be from the line through two
_ASKED_PER_S, _HOSTED_PER_S = 20, 4
_ANSWER_S, _PATH_S = 120.0, 30.0  # of a request, or as long as one of the run may take; of /tokenize
_TOKENIZE = "/tokenize"
_FEWEST, _MORE = 1, 16  # tokens of an answer: APIs of models that reason may refuse less
_UNASKED = ("min_tokens", "min_new_tokens")  # of a body that asks for so few
_NO_LENGTH = ", so prompts cannot be given a length: pass --tokenizer with the model's, or one like it"
Count = Callable[[str], Awaitable[int]]
Counted = tuple[int, int]  # the words of a prompt, and the tokens that the server counts in it


class PromptCounter:
    """Asks one server how many tokens it counts in a text, sent as a plan's requests are."""

    def __init__(self, access: ServerAddress, asked: Plan, hosted: bool, limit: int) -> None:
        self.access, self._plan, self._hosted = access, asked, hosted
        self._groups = _GROUPS if not 0 < limit < _ROOM else _FEWEST_GROUPS
        rate = _HOSTED_PER_S if hosted else _ASKED_PER_S
        self._throttle = Throttler(rate_limit=rate, period=1.0, retry_interval=0.05)
        self._asked, self._output_tokens = 0, _FEWEST
        limits = {"": _ANSWER_S, "--request-timeout": asked.profile.request_timeout}
        limits["--stall-timeout"] = asked.profile.stall_timeout
        self._flag = min((flag for flag, limit_s in limits.items() if limit_s), key=limits.__getitem__)
        self._limit_s = limits[self._flag]

    async def learn_counts(self, tokens: int) -> WordCounts:
        """Learn how the server counts words by a few requests, checked with one of about `tokens` tokens.

        The counts are fitted by /tokenize, or by usage if it is missing or the API hosted, and corrected by
        usage. Raises MeasureError where the server denies or refuses a request, or counts nothing.
        """
        async with self.access.client(self._limit_s) as client:

            async def count_by_path(text: str) -> int:
                answer = await self._ask_tokenize(client, text)
                if count := _read_count(answer):
                    return count
                raise self._explain_uncounted(_TOKENIZE, answer)

            async def count_by_usage(text: str) -> int:
                return await self._ask_usage(client, text)

            by_path = not self._hosted and bool(_read_count(await self._ask_tokenize(client, FIRST_WORD)))
            fitted = await fit_counts(count_by_path if by_path else count_by_usage, self._groups)
            fitted = await correct_counts(fitted, count_by_usage, tokens)
        how = (
            f"the server counts {fitted.per_word:.4g} tokens a word and {fitted.overhead:.4g} more in each "
            f"prompt (asked {self._asked} times before the run, by {_TOKENIZE if by_path else 'usage'})"
        )
        return replace(fitted, how=how)

    async def _ask_tokenize(self, client: httpx.AsyncClient, text: str) -> ControlAnswer:
        """Ask /tokenize, in vLLM's form, to count a text."""
        body: dict[str, Any] = {"model": self._plan.model, "prompt": text}
        if self._plan.dialect.chat:
            message = {"role": "user", "content": text}
            body = {"model": self._plan.model, "messages": [message], "add_generation_prompt": True}
            if template := self._plan.fields.get("chat_template_kwargs"):
                body["chat_template_kwargs"] = template
        return await self._ask_server(client, _TOKENIZE, body, _PATH_S)

    async def _ask_usage(self, client: httpx.AsyncClient, text: str) -> int:
        """Send a request for one token and return the count of its prompt; raises MeasureError without.

        If it is refused, it is sent again for 16 tokens, as all later ones are.
        """
        plan = self._plan
        answer = await self._ask_server(client, plan.path, self._make_body(text))
        if answer.status in REFUSING and self._output_tokens < _MORE:
            self._output_tokens = _MORE
            answer = await self._ask_server(client, plan.path, self._make_body(text))
        if answer.status in DENIED:
            raise MeasureError(self.access.explain_denial(answer))
        path = plan.path.partition("?")[0]
        if answer.error or answer.status != 200:
            raise self._explain_uncounted(path, answer)
        count = count_prompt(plan.dialect, answer.body)
        if not count and (fault := find_fault(plan.dialect, answer.body)):
            why = self.access.secrets.hide(untrusted.read_line(fault))
            raise MeasureError(f"{self.access.shown_url}{path} answers 200 with an error: {why}")
        if not count:
            field = plan.dialect.prompt_count
            what = f"no {field}" if count is None else f"{field} of 0"
            raise MeasureError(f"{self.access.shown_url}{path} reports {what}{_NO_LENGTH}")
        return count

    def _explain_uncounted(self, path: str, answer: ControlAnswer) -> MeasureError:
        """Make the error for a server that answers `path` without a count: what it says, and what to do."""
        why = answer.error or f"answers {refusals.format_message(answer.status, answer.body)}"
        if answer.error and answer.status in REDIRECTS:
            return MeasureError(f"{self.access.shown_url}{path} {answer.error} (--base-url, --endpoint)")
        fix = "pass --tokenizer to need no answer"
        if answer.timed_out and self._flag:
            fix += f", or raise {self._flag}"
        what = "asked how many tokens it counts in a prompt"
        return MeasureError(self.access.secrets.hide(f"{self.access.shown_url}{path}, {what}, {why}: {fix}"))

    def _make_body(self, text: str) -> dict[str, Any]:
        """Return the body of a request with the run's fields, but no minimum length, for a short answer."""
        plan = self._plan
        fields = {name: value for name, value in plan.fields.items() if name not in _UNASKED}
        if sampling := untrusted.read_mapping(fields.get("sampling_params")):
            fields["sampling_params"] = {name: sampling[name] for name in sampling if name not in _UNASKED}
        request = plan.dialect.make_request(plan.model, text, self._output_tokens)
        return merge_fields(request, fields)

    async def _ask_server(
        self, client: httpx.AsyncClient, path: str, body: dict[str, Any], most_s: float = _ANSWER_S
    ) -> ControlAnswer:
        """Send a request within the rate limit, count it, and return the answer, in `most_s` at most."""
        async with self._throttle:
            self._asked += 1
            return await exchange.ask_server(client, "POST", path, min(most_s, self._limit_s), body=body)


def add_word_counts(
    adapter: Adapter, known: dict[str, WordCounts], workload: Profile, seed: Seed, limit: int
) -> ModelTarget:
    """Return the adapter's model with the server's count of words, for prompts made of words.

    It is asked once for all requests of one form, of which it takes `limit` tokens (0: not known). What it
    refuses of a request is learned before, as it would be for the run. Raises MeasureError.
    """
    subject = adapter.subject
    warmup = plan.make_warmup(
        workload.model_copy(update={"num_warmups": 1, "prefix_len": 0, "prefix_groups": 1}), subject, seed
    )
    key = f"{warmup.path} {warmup.fields.get('chat_template_kwargs')}"
    if key not in known:
        if subject.engine.unproven:
            warmup = adapter.adapt(warmup)
        counter = PromptCounter(adapter.access, warmup, subject.engine.hosted, limit)
        with choose_display(adapter.quiet).waiting("asking how the server counts words"):
            learning = counter.learn_counts(workload.input_len + workload.prefix_len)
            known[key] = adapter.access.loop.run(learning)
    return replace(subject, word_counts=known[key])


def _read_count(answer: ControlAnswer) -> int | None:
    """Return the count in an answer of /tokenize; None if it has none or 0, or the server lacks that path."""
    return untrusted.read_count(answer.object.get("count")) or None


async def fit_counts(count: Count, groups: int) -> WordCounts:
    """Learn the tokens per word, and per prompt on top, from counts of groups of common words.

    One group more than all in one prompt is one overhead more: no list of tokens is needed. The overhead is
    learned with the first word of all prompts in it. Where some groups, or some parts of the best one, have
    exactly one token a word, prompts are made of these alone; else of the group with the fewest tokens, whose
    words differ least. Raises MeasureError where a count cannot be that of the words.
    """
    common = list_common_words()[: groups * _GROUP]
    parts = [common[begin : begin + _GROUP] for begin in range(0, groups * _GROUP, _GROUP)]
    alone = [await count(_join_words(part)) for part in parts]
    # In the same order the first words might be in a cache, and not counted.
    together = await count(_join_words(common[::-1]))
    first = (sum(alone) - together) / (groups - 1)  # of the overhead and the first word
    if (together - first) / len(common) < _LEAST_PER_WORD:  # all of them may be longer than its context
        first = await count(FIRST_WORD)
        if (max(alone) - first) / _GROUP < _LEAST_PER_WORD:
            raise _explain_miscount((len(parts[0]) + 1, max(alone)), (len(common) + 1, together))
    own = [tokens - first for tokens in alone]
    exact = _select_single_tokens(parts, own)
    best = int(np.argmin(own))
    if not exact and own[best] - _GROUP <= _GROUP // _EIGHTH - _FEWEST_EIGHTHS:
        eighths = [parts[best][begin : begin + _EIGHTH] for begin in range(0, _GROUP, _EIGHTH)]
        exact = _select_single_tokens(eighths, [await count(_join_words(part)) - first for part in eighths])
    if len(exact) >= _EIGHTH * _FEWEST_EIGHTHS:
        return WordCounts(exact, first - 1)
    per_word = own[best] / _GROUP
    return WordCounts(parts[best], first - per_word, per_word)


def _select_single_tokens(parts: list[tuple[str, ...]], tokens: list[float]) -> tuple[str, ...]:
    """Return the words of those parts whose tokens are as many as their words, to a quarter of a token."""
    counted = zip(parts, tokens, strict=True)
    return tuple(
        word for part, tokens_of_part in counted if abs(tokens_of_part - len(part)) < _EXACT for word in part
    )


async def correct_counts(counts: WordCounts, count: Count, tokens: int) -> WordCounts:
    """Correct the counts if a prompt of about `tokens` tokens has another length than they predict.

    What rounding may make is left to the fit, which has the mean of more counts; a token or two go to the
    overhead; more is measured at two lengths. Raises MeasureError for counts that are impossible or cut off.
    """
    most = max(int(tokens / _LEAST_PER_WORD), _SHORTEST_CHECK)
    n = min(max(counts.count_words(tokens - counts.overhead), _SHORTEST_CHECK), _LONGEST_CHECK, most)
    rng = np.random.default_rng()
    if counts.per_word == 1:
        long, short = (tuple(rng.choice(counts.words, size).tolist()) for size in (n - 1, n // 2))
    else:  # with each word as often as any other, so that chance has no part in it
        times = max(1, n // (2 * len(counts.words)))
        long, short = (tuple(rng.permutation(counts.words * size).tolist()) for size in (2 * times, times))
    measured = await count(_join_words(long))
    added = measured - counts.tokens(len(long) + 1)
    if abs(added) < _ROUNDED:
        return counts
    if abs(added) <= _ADDED:
        return replace(counts, overhead=counts.overhead + added)
    fewer = await count(_join_words(short))
    per_word = (measured - fewer) / (len(long) - len(short))
    corrected = replace(counts, per_word=per_word, overhead=measured - per_word * (len(long) + 1))
    if -added > max(_CUT_TOKENS, _CUT_SHARE * measured):
        between = tuple(rng.permutation(long[max(1, int(-added / 2 / counts.per_word)) :]).tolist())
        if len(between) > len(short):  # it should have a count halfway between what they predict and this one
            third = await count(_join_words(between))
            off = abs(third - corrected.tokens(len(between) + 1))
            if third == measured or off > _JUMP_SHARE * measured:
                raise _explain_miscount((len(between) + 1, third), (len(long) + 1, measured))
        if fewer == measured:  # it was truncated: a shorter one counts the same
            raise _explain_miscount((len(short) + 1, fewer), (len(long) + 1, measured))
    if per_word < _LEAST_PER_WORD or corrected.count_words(tokens - corrected.overhead) > most:
        raise _explain_miscount((len(short) + 1, fewer), (len(long) + 1, measured))
    return corrected


def _explain_miscount(fewer: Counted, more: Counted) -> MeasureError:
    """Make the error for two prompts, each given as (words, tokens counted by the server).

    Equal counts are of a server that cuts prompts to its context.
    """
    (words_before, tokens_before), (words_after, tokens_after) = fewer, more
    if tokens_before == tokens_after:
        return MeasureError(
            f"the server counts {tokens_after} tokens for any longer prompt ({words_before} words as well "
            f"as {words_after}), as one that cuts prompts to its context does (Ollama: num_ctx): raise its "
            "context length or ask for shorter prompts (--random-input-len); --tokenizer NAME sends them "
            "without asking"
        )
    return MeasureError(
        f"the server counts {tokens_before} tokens in a prompt of {words_before} words and {tokens_after} "
        f"in one of {words_after}{_NO_LENGTH}"
    )


def _join_words(chosen: tuple[str, ...]) -> str:
    """Join words to a prompt, behind FIRST_WORD."""
    return " ".join((FIRST_WORD, *chosen))
