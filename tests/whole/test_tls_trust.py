"""Whose certificates count: --ca-cert, --client-cert, --client-key, --insecure; what is said without."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from fakes.scripted_server import Answer, ScriptedServer, drive, job_of, kinds, stream, whole
from loadgen.base.errors import MeasureError, UsageError
from loadgen.server import exchange
from loadgen.server.control import ServerProbe
from loadgen.server.exchange import ServerAddress

READY = Answer([whole(b'{"data":[{"id":"m"}]}')])
NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def serving(certificate: trustme.LeafCert, asks: trustme.CA | None = None) -> ssl.SSLContext:
    """A server's context; with `asks` it takes only clients that this authority has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    if asks is not None:
        asks.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.fixture
def trusted(authority: trustme.CA, tmp_path: Path) -> str:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return str(tmp_path / "ca.pem")


def good(authority: trustme.CA) -> trustme.LeafCert:
    return authority.issue_cert("127.0.0.1")


def expired(authority: trustme.CA) -> trustme.LeafCert:
    return authority.issue_cert(
        "127.0.0.1", not_before=NOW - timedelta(days=9), not_after=NOW - timedelta(days=1)
    )


def of_another_host(authority: trustme.CA) -> trustme.LeafCert:
    return authority.issue_cert("elsewhere.example")


@pytest.mark.parametrize(("issued", "trusts", "said"), [
    pytest.param(good, False, ["no trusted authority", "--ca-cert FILE", "--insecure"], id="unknown"),
    pytest.param(expired, True, ["out of date", "expired", "--insecure", "--ca-cert"], id="expired"),
    pytest.param(of_another_host, True, ["is for another host", "--insecure"], id="another host"),
])  # fmt: skip
def test_a_certificate_that_is_refused_says_why_and_what_to_do(
    authority: trustme.CA,
    trusted: str,
    issued: Callable[[trustme.CA], trustme.LeafCert],
    trusts: bool,
    said: list[str],
) -> None:
    with ScriptedServer(lambda _: READY, tls=serving(issued(authority))) as server:
        access = ServerAddress(server.base_url, ca_cert=trusted if trusts else None)
        with pytest.raises(MeasureError) as refused:
            ServerProbe(access).ask("m", 60.0)  # and is not waited for
        assert server.asked == []
    assert [word for word in said if word not in str(refused.value)] == []
    assert "wait for the server" not in str(refused.value)


def test_a_certificate_that_signed_itself_is_said_to_be_so(tmp_path: Path) -> None:
    lonely = trustme.CA()  # an authority's own certificate is signed by itself
    pem = tmp_path / "own.pem"
    lonely.cert_pem.write_to_path(str(pem))
    lonely.private_key_pem.write_to_path(str(pem), append=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with ScriptedServer(lambda _: READY, tls=context) as server:
        access = ServerAddress(server.base_url)
        with pytest.raises(
            MeasureError,
            match=r"is self-signed \(self.signed certificate\): name it with --ca-cert FILE, or .*--insecure",
        ):
            ServerProbe(access).ask("m", 0.0)


@pytest.mark.parametrize("issued", [good, expired, of_another_host])
def test_insecure_takes_each_of_them(
    authority: trustme.CA, issued: Callable[[trustme.CA], trustme.LeafCert]
) -> None:
    with ScriptedServer(lambda _: READY, tls=serving(issued(authority))) as server:
        access = ServerAddress(server.base_url, insecure=True)
        assert ServerProbe(access).ask(None, 0.0).model == "m"


@pytest.mark.parametrize("transport", ["wire", "httpx"])
def test_an_authority_of_ones_own_is_trusted_by_every_transport(
    authority: trustme.CA, trusted: str, transport: str
) -> None:
    with ScriptedServer(lambda _: stream(), tls=serving(good(authority))) as server:
        access = ServerAddress(server.base_url, ca_cert=trusted)
        driven = drive(job_of(access.target("/v1/completions"), 2, 1), transport)
    assert kinds(driven) == [None, None]


@pytest.fixture
def client(authority: trustme.CA, tmp_path: Path) -> tuple[str, str, str]:
    """Files of a client's certificate, its key, and both in one."""
    leaf = authority.issue_cert("client.example")
    paths = [tmp_path / name for name in ("cert.pem", "key.pem", "both.pem")]
    leaf.cert_chain_pems[0].write_to_path(str(paths[0]))
    leaf.private_key_pem.write_to_path(str(paths[1]))
    leaf.private_key_and_cert_chain_pem.write_to_path(str(paths[2]))
    return str(paths[0]), str(paths[1]), str(paths[2])


@pytest.mark.parametrize("one_file", [False, True])
@pytest.mark.parametrize("transport", ["control", "wire", "httpx"])
def test_a_server_that_asks_for_a_certificate_gets_ours(
    authority: trustme.CA, trusted: str, client: tuple[str, str, str], transport: str, one_file: bool
) -> None:
    certificate, key, both = client
    mutual = serving(good(authority), asks=authority)
    with ScriptedServer(lambda asked: READY if "GET" in asked.head else stream(), tls=mutual) as server:
        access = ServerAddress(
            server.base_url,
            ca_cert=trusted,
            client_cert=both if one_file else certificate,
            client_key=None if one_file else key,
        )
        if transport == "control":
            assert ServerProbe(access).ask(None, 0.0).model == "m"
        else:
            assert kinds(drive(job_of(access.target("/x"), 2, 1), transport)) == [None, None]


def test_a_server_that_asks_for_a_certificate_and_gets_none_is_said(
    authority: trustme.CA, trusted: str
) -> None:
    with ScriptedServer(lambda _: READY, tls=serving(good(authority), asks=authority)) as server:
        access = ServerAddress(server.base_url, ca_cert=trusted)

        async def asked() -> exchange.ControlAnswer:
            async with access.client(5.0) as client:
                return await exchange.ask_server(client, "GET", "/health", 5.0)

        found = asyncio.run(asked())
        assert server.asked == []
    assert found.error.startswith("does not answer: ")


@pytest.mark.parametrize("flag", ["--ca-cert", "--client-cert", "--client-key"])
@pytest.mark.parametrize("content", [None, "", "no certificate", "directory"])
def test_a_file_that_is_of_no_use_is_named_with_its_flag(
    tmp_path: Path, client: tuple[str, str, str], flag: str, content: str | None
) -> None:
    place = tmp_path / "file.pem"
    if content == "directory":
        place.mkdir()
    elif content is not None:
        place.write_text(content, "utf-8")
    given = {flag[2:].replace("-", "_"): str(place)}
    if flag == "--client-key":
        given["client_cert"] = client[0]
    access = ServerAddress("https://127.0.0.1", **given)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=rf"{flag} .*file\.pem"):
        ServerProbe(access)


def test_a_key_of_another_certificate_is_said(
    authority: trustme.CA, client: tuple[str, str, str], tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    authority.issue_cert("other.example").private_key_pem.write_to_path(str(other))
    access = ServerAddress("https://127.0.0.1", client_cert=client[0], client_key=str(other))
    with pytest.raises(UsageError, match=r"--client-cert .* --client-key .*mismatch"):
        ServerProbe(access)


@pytest.mark.parametrize(("base_url", "given", "said"), [
    ("http://127.0.0.1", {"ca_cert": "x"}, "--ca-cert is for TLS: it needs an https base URL"),
    ("http://127.0.0.1", {"client_key": "x"}, "--client-key is for TLS"),
    ("https://127.0.0.1", {"client_key": "x"}, "pass --client-cert too"),
])  # fmt: skip
def test_what_does_not_go_together_is_refused(base_url: str, given: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ServerProbe(ServerAddress(base_url, **given))  # type: ignore[arg-type]
