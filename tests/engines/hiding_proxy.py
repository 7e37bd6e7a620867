"""Hiding proxy: a server in front of an engine that passes on all of its paths but some."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

_LIMIT_S = 60.0
_PASSED_ON = ("content-type", "authorization")


@contextmanager
def hiding(base_url: str, hidden: Sequence[str]) -> Iterator[str]:
    """The address of a server that answers as `base_url` does, and 404 at the paths that are hidden."""

    class Passing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._pass_on(b"")

        def do_POST(self) -> None:
            self._pass_on(self.rfile.read(int(self.headers["content-length"] or 0)))

        def _pass_on(self, body: bytes) -> None:
            if self.path in hidden:
                self.send_error(404)
                return
            headers = {name: value for name, value in self.headers.items() if name.lower() in _PASSED_ON}
            asked = client.stream(self.command, base_url + self.path, content=body, headers=headers)
            with asked as answer:
                self.send_response(answer.status_code)
                self.send_header("content-type", answer.headers.get("content-type", "text/plain"))
                self.end_headers()
                for piece in answer.iter_raw():
                    self.wfile.write(piece)
                    self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with httpx.Client(trust_env=False, timeout=_LIMIT_S) as client:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Passing)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
