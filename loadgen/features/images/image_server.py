"""Image server: serves a plan's images at a port of loopback, from a process of its own."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import threading
import weakref
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from loadgen.features.images.image_album import Album
from loadgen.transport.capture_process import FORKING, fork_process

_HERE = "127.0.0.1"
_OPEN_FILES = "/dev/fd"  # the numbers of this process's open files; the limit of them may be a billion
_BACKLOG = 1024
_PATH = "/image-"


class ImageServer:
    """A process that serves the images of an album until this object, or the process that made it, is gone.

    It is forked once the album is made, so that the images are shared, and before the clock starts.
    """

    def __init__(self, album: Album) -> None:
        self._album = album
        listening = socket.create_server((_HERE, 0), backlog=_BACKLOG)
        self._port = listening.getsockname()[1]
        with FORKING:  # else a capturing process that is forked now holds the pipe open
            reading, writing = os.pipe()
            pid = fork_process()
        if not pid:
            try:
                # What others wait for the end of, as a server for that of its pipe, must not stay open here.
                # An object that the collector finds would close a number that is in use again.
                gc.disable()
                kept = {0, 1, 2, listening.fileno(), reading}
                for number in {int(name) for name in os.listdir(_OPEN_FILES)} - kept:
                    with contextlib.suppress(OSError):  # that of the listing itself
                        os.close(number)
                _serve(album, listening, reading)
            finally:
                os._exit(0)
        os.close(reading)
        listening.close()
        self._end = weakref.finalize(self, _end_process, pid, writing, os.getpid())

    def name_url(self, image: int) -> str:
        """Return the URL of an image."""
        return f"http://{_HERE}:{self._port}{_PATH}{image}.{self._album.kind(image)}"

    def close(self) -> None:
        """End the process, if it has not ended."""
        self._end()


def _end_process(pid: int, writing: int, owner: int) -> None:
    """End the server and close our end of its pipe; nothing in a process that only inherited them."""
    if os.getpid() != owner:
        return
    os.close(writing)
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _serve(album: Album, listening: socket.socket, reading: int) -> None:
    """Serve images until the other end of a pipe is closed, as it is when whoever has it ends.

    Signals of the terminal are for the run, which ends this process when it is over.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    class ImageAnswer(BaseHTTPRequestHandler):
        """Answers a GET of an image with its bytes, and anything else with 404."""

        protocol_version = "HTTP/1.1"
        timeout = 60

        def do_GET(self) -> None:
            """Send the image that the path names."""
            number = self.path.removeprefix(_PATH).partition(".")[0]
            if not self.path.startswith(_PATH) or not number.isdecimal():
                self.send_error(404)
                return
            if int(number) >= len(album.pages_of):
                self.send_error(404)
                return
            content = album.write(int(number))
            self.send_response(200)
            self.send_header("Content-Type", f"image/{album.kind(int(number))}")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Write nothing: the terminal is the run's."""

    class QuietServer(ThreadingHTTPServer):
        """Writes nothing about a request that fails, as where a client goes away."""

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Write nothing: the terminal is the run's."""

    server = QuietServer((_HERE, 0), ImageAnswer, bind_and_activate=False)
    server.socket.close()
    server.socket = listening
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.read(reading, 1)
