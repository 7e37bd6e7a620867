"""Made logs: one known workload, written as each kind of log that a service may have kept of it."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from builders.loops import read_tables

BEGIN_S = 1_790_000_000.0  # of the log
WORDS = (
    "ledger", "harbor", "violet", "mirror", "cobalt", "sparrow", "timber", "saffron", "glacier", "pewter",
)  # fmt: skip
KEY = "88dc28d0f030c55ed4ab77ed8faf098196cb1c05"
SECRETS = ("user-17@corp.example", "sess-4711-aa", "prod-llm-large", "10.11.12.13")


@dataclass(frozen=True)
class KnownCall:
    """One request of a known workload; `ids` and `messages` are the same prompt."""

    begin_s: float
    took_s: float
    ids: list[int]
    messages: list[dict[str, str]]
    output_len: int
    session: int
    cancelled: bool = False
    temperature: float = 0.7

    @property
    def number(self) -> str:
        return f"{self.session:04d}-{self.begin_s:.6f}"


def make_calls(sessions: int, seed: int = 1, per_s: float = 2.0) -> list[KnownCall]:
    """Make sessions of one to six turns behind one of three shared prompts, sorted by time."""
    drawn = random.Random(seed)
    shared = [_make_text(drawn, 400 + 100 * k) for k in range(3)]
    calls, at_s = [], BEGIN_S
    for session in range(sessions):
        at_s += drawn.expovariate(per_s)
        system = drawn.choice(shared)
        messages = [{"role": "system", "content": system}]
        ids = _spell(system)
        begin_s = at_s
        for _ in range(drawn.randint(1, 6)):
            asked = _make_text(drawn, drawn.randint(5, 120))
            messages, ids = [*messages, {"role": "user", "content": asked}], [*ids, *_spell(asked)]
            output_len, took_s = drawn.randint(1, 200), drawn.uniform(0.05, 4)
            calls.append(
                KnownCall(round(begin_s, 6), round(took_s, 6), ids, messages, output_len, session,
                          cancelled=drawn.random() < 0.05, temperature=drawn.choice((0.0, 0.7, 1.0))),
            )  # fmt: skip
            answer = _make_text(drawn, output_len)
            messages, ids = [*messages, {"role": "assistant", "content": answer}], [*ids, *_spell(answer)]
            begin_s += took_s + drawn.expovariate(0.2)
    return sorted(calls, key=lambda call: call.begin_s)


def _make_text(drawn: random.Random, words: int) -> str:
    return " ".join(f"{drawn.choice(WORDS)}{drawn.randrange(10_000):x}" for _ in range(words))


def _spell(text: str) -> list[int]:
    """Return one token id for each word of a text, below 50,000 and the same for the same word."""
    return [sum(word.encode()) * 31 % 50_000 + len(word) for word in text.split()]


def _stamp(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds")


def write_csv(path: Path, calls: Sequence[KnownCall]) -> Path:
    """Write a CSV with the columns of COLUMNS, and more that are not to be kept."""
    rows = ["user,ts,dur,prompt_tokens,completion_tokens,conversation,http"]
    for call in calls:
        status = 499 if call.cancelled else 200
        rows.append(
            f"{SECRETS[0]},{_stamp(call.begin_s)},{call.took_s},{len(call.ids)},{call.output_len},"
            f"{SECRETS[1]}-{call.session},{status}"
        )
    path.write_text("\n".join(rows) + "\n")
    return path


COLUMNS = "time=ts,duration=dur,input=prompt_tokens,output=completion_tokens,session=conversation,status=http"


def write_litellm(path: Path, calls: Sequence[KnownCall]) -> Path:
    """Write rows of LiteLLM's spend logs with the messages, as its database keeps them."""
    with path.open("w") as file:
        for call in calls:
            row = {
                "request_id": f"chatcmpl-{call.number}",
                "call_type": "acompletion",
                "api_key": KEY,
                "spend": 0.00125,
                "total_tokens": len(call.ids) + call.output_len,
                "prompt_tokens": len(call.ids),
                "completion_tokens": call.output_len,
                "startTime": _stamp(call.begin_s).replace("+00:00", "Z"),
                "endTime": _stamp(call.begin_s + call.took_s).replace("+00:00", "Z"),
                "model": SECRETS[2],
                "user": SECRETS[0],
                "end_user": SECRETS[0],
                "requester_ip_address": SECRETS[3],
                "session_id": f"{SECRETS[1]}-{call.number}",
                "cache_hit": "False",
                "status": "success",
                "messages": {},
                "metadata": json.dumps({"user_api_key_alias": SECRETS[0]}),
                "proxy_server_request": json.dumps(
                    {"model": SECRETS[2], "messages": call.messages, "temperature": call.temperature}
                ),
            }
            file.write(json.dumps(row) + "\n")
    return path


_PARAMS = (
    "SamplingParams(n=1, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0, "
    "temperature={temperature}, top_p=0.95, top_k=-1, min_p=0.0, seed=None, stop=['temperature=9'], "
    "ignore_eos=False, max_tokens={limit}, min_tokens=0, logprobs=None)"
)
# By version: the share of a call's time after which a line is written, seconds before that, whether of
# cancelled calls alone (or never of them), and the line.
_VLLM: dict[str, list[tuple[int, float, bool | None, str]]] = read_tables("made_logs")


def _list_lines(version: str, call: KnownCall) -> list[tuple[float, str]]:
    """The lines of a call, each with the time at which it is written."""
    prompt = "".join(f"{message['role']}\n{message['content']}\n" for message in call.messages)
    streamed = call.cancelled or call.output_len % 2
    limit = call.output_len if version == "0.6" else 4096
    fields = {
        "at": "{at}", "number": call.number, "prompt": prompt, "ids": call.ids, "answer": prompt[-9:],
        "answer_ids": call.ids[:1] * call.output_len, "reason": "abort" if call.cancelled else "stop",
        "params": _PARAMS.format(temperature=call.temperature, limit=limit),
        "part": " (streaming delta)" if streamed else "",
        "whole": " (streaming complete)" if streamed else "",
        "why": "streaming_complete" if streamed else "stop",
    }  # fmt: skip
    return [
        (call.begin_s + share * call.took_s - before_s, line.format(**fields))
        for share, before_s, cancelled, line in _VLLM[version]
        if cancelled is None or cancelled == call.cancelled
    ]


def write_vllm(path: Path, calls: Sequence[KnownCall], version: str) -> Path:
    """Write the log of one of vLLM's versions, with the times of the container's own log."""
    lines: list[tuple[float, str]] = []
    for call in calls:
        lines += _list_lines(version, call)
    with path.open("w") as file:
        file.write("INFO 10-17 08:00:00 api_server.py:528] vLLM API server version 0\n\n")
        for at_s, line in sorted(lines, key=lambda each: each[0]):
            own = datetime.fromtimestamp(at_s, UTC).strftime("%m-%d %H:%M:%S")
            file.write(f"{_stamp(at_s)} {line.replace('{at}', own, 1)}\n")
    return path


def write_nginx(path: Path, calls: Sequence[KnownCall], as_json: bool = False) -> Path:
    """Write an access log of nginx, ingress-nginx's or a log_format of JSON; lines are written at ends."""
    with path.open("w") as file:
        file.write(_nginx_line(calls[0], "GET /health HTTP/1.1", 200, as_json))
        for call in sorted(calls, key=lambda each: each.begin_s + each.took_s):
            status = 499 if call.cancelled else 200
            file.write(_nginx_line(call, "POST /v1/chat/completions HTTP/1.1", status, as_json))
    return path


def _nginx_line(call: KnownCall, request: str, status: int, as_json: bool) -> str:
    end_s = call.begin_s + call.took_s
    sizes = len(call.ids) * 4, call.output_len * 270
    if as_json:
        row = {
            "msec": f"{end_s:.6f}", "remote_addr": SECRETS[3], "remote_user": SECRETS[0], "request": request,
            "status": str(status), "body_bytes_sent": str(sizes[1]), "request_time": f"{call.took_s:.6f}",
            "request_length": "99999999", "content_length": str(sizes[0]),
        }  # fmt: skip
        return json.dumps(row) + "\n"
    at = datetime.fromtimestamp(end_s, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
    return (
        f'{SECRETS[3]} - {SECRETS[0]} [{at}] "{request}" {status} {sizes[1]} "-" "python/{SECRETS[1]}" '
        f"{sizes[0]} {call.took_s:.3f} [default-{SECRETS[2]}-8000] [] 10.0.0.9:8000 {sizes[1]} 0.1 200 abc\n"
    )


def write_envoy(path: Path, calls: Sequence[KnownCall], istio: bool = False) -> Path:
    """Write an access log of Envoy in its default format, or in Istio's."""
    with path.open("w") as file:
        for call in sorted(calls, key=lambda each: each.begin_s + each.took_s):
            at = _stamp(call.begin_s).replace("+00:00", "Z")
            more = 'via_upstream - "-" ' if istio else ""
            flags, code = ("DC", 0) if call.cancelled else ("-", 200)
            file.write(
                f'[{at}] "POST /v1/chat/completions HTTP/1.1" {code} {flags} {more}{len(call.ids) * 4} '
                f'{call.output_len * 270} {round(call.took_s * 1000)} 12 "{SECRETS[3]}" "{SECRETS[0]}" '
                f'"{SECRETS[1]}" "{SECRETS[2]}" "10.0.0.9:8000"\n'
            )
    return path
