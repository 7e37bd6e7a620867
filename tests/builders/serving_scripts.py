"""Servers in a few lines, as processes of their own that behave as badly as they are told to.

It is imported by those processes too, which start in a blink: it needs the standard library alone.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parents[1]
_ROOT = _HERE.parent
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass(frozen=True)
class Asked:
    """A request for tokens: which it is, from 1, and what it wants."""

    number: int
    prompt_tokens: int
    max_tokens: int


def die(code: int, words: str) -> None:
    """End the whole server at once with these last words."""
    print(words, flush=True)
    os._exit(code)


def nothing(asked: Asked) -> None:
    """Every request is answered in full."""


@dataclass
class Server:
    """Answers as vLLM's API does; `heed` may spoil it, and says with what status to refuse, if at all."""

    heed: Callable[[Asked], int | None] = nothing
    health: Callable[[], int] = lambda: 200
    owner: str = "someone"
    model: str = "m"
    counted: int = 0

    def serve(self) -> None:
        """Serve on the port that the command line gives, forever."""
        self.lock = threading.Lock()
        listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=64)
        print("listening", flush=True)
        while True:
            sock, _ = listener.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._converse, args=(sock,), daemon=True).start()

    def _converse(self, sock: socket.socket) -> None:
        with sock, sock.makefile("rb") as lines:
            while first := lines.readline():
                method, path, _ = first.decode().split()
                length = 0
                while (header := lines.readline().decode().strip()) != "":
                    name, _, value = header.partition(":")
                    length = int(value) if name.lower() == "content-length" else length
                body = lines.read(length)
                for piece in self._answer(method, path, body):
                    sock.sendall(piece)

    def _answer(self, method: str, path: str, body: bytes) -> Iterator[bytes]:
        card = {"id": self.model, "owned_by": self.owner, "max_model_len": 4096}
        known: dict[str, tuple[int, dict[str, object]]] = {
            "GET /health": (self.health() if path == "/health" else 0, {}),
            "GET /v1/models": (200, {"data": [card]}),
            "GET /version": (200, {"version": "1"}),
            "POST /reset_prefix_cache": (200, {}),
        }
        if (method, path) == ("POST", "/v1/completions"):
            yield from self._completion(json.loads(body))
        else:
            yield _whole(*known.get(f"{method} {path}", (404, {})))

    def _completion(self, wanted: dict[str, object]) -> Iterator[bytes]:
        prompt, tokens = wanted["prompt"], wanted["max_tokens"]
        assert isinstance(prompt, list)
        assert isinstance(tokens, int)
        with self.lock:
            self.counted += 1
            asked = Asked(self.counted, len(prompt), tokens)
        if (status := self.heed(asked)) is not None:
            yield _whole(status, {"error": {"message": "as it was told"}})
            return
        yield HEAD
        for index in range(tokens):
            reason = "length" if index == tokens - 1 else None
            yield _event({"choices": [{"index": 0, "text": "a", "finish_reason": reason}]})
        counts = {"prompt_tokens": len(prompt), "completion_tokens": tokens}
        yield _event({"choices": [], "usage": counts})
        yield _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def _whole(status: int, body: dict[str, object]) -> bytes:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} So\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


def _event(message: dict[str, object]) -> bytes:
    return _chunk(b"data: " + json.dumps(message).encode() + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def launch_command(directory: Path, code: str) -> str:
    """The --launch-command of a program that begins with this module's names; its port is `sys.argv[1]`."""
    path = directory / "server.py"
    start = f"import os, signal, sys, time\nsys.path.insert(0, {str(_HERE)!r})\n"
    path.write_text(f"{start}from builders.serving_scripts import *\n{code}\n", "utf-8")
    return shlex.join([sys.executable, "-S", str(path)]) + " {port}"


def engine_command(*flags: str) -> str:
    """The --launch-command of the embedded engine, which is then nothing but a server of somebody's."""
    path = os.pathsep.join(filter(None, [str(_ROOT / "servers"), os.environ.get("PYTHONPATH")]))
    argv = [sys.executable, "-m", "loadgen_servers.engine", *flags]
    return f"PYTHONPATH={shlex.quote(path)} {shlex.join(argv)} --port {{port}}"
