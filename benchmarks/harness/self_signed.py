"""Self-signed: a certificate for 127.0.0.1, and the file of the authority that a client is to trust."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme


def certified(place: Path) -> ssl.SSLContext:
    """A server's context; the authority is written to `ca.pem` in a directory."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(place / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context
