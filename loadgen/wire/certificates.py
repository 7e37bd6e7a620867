"""Certificates: the reason why a server's TLS certificate is not trusted, and what to pass."""

from __future__ import annotations

import ssl
from typing import Final

from loadgen.base import untrusted

_INSECURE = "pass --insecure to accept any certificate (--ca-cert does not help)"
# OpenSSL's verify codes: expired and not yet valid; of another name, or address; signed by itself.
_DATES, _NAMES, _OWN = (9, 10), (62, 64), 18
_DEEPEST: Final = 8  # causes of an error


def explain_distrust(error: BaseException) -> str:
    """Explain what is wrong with a server's certificate, and what to do; "" for any other error."""
    refusal = _find_certificate_error(error)
    return "" if refusal is None else f"has a TLS certificate that {_explain_refusal(refusal)}"


def _find_certificate_error(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """Find the certificate error among an error's causes."""
    for _ in range(_DEEPEST):
        if error is None or isinstance(error, ssl.SSLCertVerificationError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _explain_refusal(refusal: ssl.SSLCertVerificationError) -> str:
    reason = untrusted.read_text(refusal.verify_message or refusal.reason or "is not valid").rstrip(".")
    if refusal.verify_code in _DATES:
        return f"is out of date ({reason}): renew it, or {_INSECURE}"
    if refusal.verify_code in _NAMES:
        return f"is for another host ({reason}): check --base-url, or {_INSECURE}"
    if refusal.verify_code == _OWN:
        return (
            f"is self-signed ({reason}): name it with --ca-cert FILE, or pass --insecure to accept any "
            "certificate"
        )
    return (
        f"no trusted authority has signed ({reason}): name the authority with --ca-cert FILE, or pass "
        "--insecure to accept any certificate"
    )
