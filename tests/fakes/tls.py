"""Certificates of an authority of a test's own."""

from __future__ import annotations

import ssl

import trustme


def make_contexts(
    *names: str, version: ssl.TLSVersion | None = None
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Make the context of a server of these names, and that of a client that trusts it."""
    authority = trustme.CA()
    serving, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    if version is not None:
        serving.minimum_version = serving.maximum_version = version
    authority.issue_cert(*names).configure_cert(serving)
    authority.configure_trust(trusting)
    return serving, trusting
