"""The host and the port of a URL, and whether it is this machine."""

from __future__ import annotations

from builders.loops import loop_over
from loadgen.base.address import host_of, is_this_machine, port_of


@loop_over(
    ("url", "host", "port", "here"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, True),
        ("http://127.9.9.9", "127.9.9.9", 80, True),
        ("https://[::1]/v1", "::1", 443, True),
        ("https://[::ffff:127.0.0.1]:1", "::ffff:127.0.0.1", 1, True),
        ("http://0.0.0.0:80", "0.0.0.0", 80, True),
        ("http://LOCALHOST.:9", "localhost.", 9, True),
        ("http://localhost.example", "localhost.example", 80, False),
        ("http://127.example", "127.example", 80, False),
        ("http://10.0.0.1", "10.0.0.1", 80, False),
        ("", "", 80, False),
    ],
)
def test_a_url_names_its_host_its_port_and_this_machine(url: str, host: str, port: int, here: bool) -> None:
    assert (host_of(url), port_of(url), is_this_machine(url)) == (host, port, here)


def test_half_an_address_has_no_host() -> None:
    assert host_of("http://[h") == ""
    assert not is_this_machine("http://[h")
