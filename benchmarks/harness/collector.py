"""An OTLP/HTTP collector that takes everything and keeps nothing: `python -m benchmarks.harness.collector`.

It prints its port once it listens.
"""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Taking(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Read what was sent, and answer that it was taken."""
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), _Taking) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()
