"""Where telemetry goes, as people write it: what is taken, and what is refused with what to give."""

from __future__ import annotations

import pytest

from loadgen.base.errors import UsageError
from loadgen.run.command import options
from loadgen.settings.telemetry_settings import check_collector_url, check_listen_address

TAKEN = [
    (check_collector_url, "http://localhost:4318", "http://localhost:4318"),
    (check_collector_url, " https://otel.example/otlp/ ", "https://otel.example/otlp"),
    (check_collector_url, "", ""),
    (check_listen_address, "9464", "127.0.0.1:9464"),
    (check_listen_address, "0.0.0.0:9464", "0.0.0.0:9464"),
    (check_listen_address, "[::1]:80", "[::1]:80"),
]
REFUSED = [
    ("--otel ftp://x", "is not a collector's URL: give one as http://localhost:4318"),
    ("--otel localhost:4318", "is not a collector's URL: give one as"),
    ("--otel http://x:99999", "is not a collector's URL: give one as"),
    ("--otel http://u:secret@x", "holds more than host, port and path (not shown): put a key into"),
    ("--otel http://x/?key=secret", "holds more than host, port and path (not shown): put a key into"),
    ("--otel http://x/v1/traces", "is the place of one signal: leave out /v1/traces"),
    ("--prometheus 0", "is not a port: give PORT, or HOST:PORT as 0.0.0.0:9464"),
    ("--prometheus 65536", "is not a port: give PORT, or HOST:PORT as"),
    ("--prometheus x:y", "is not a port: give PORT, or HOST:PORT as"),
]


@pytest.mark.parametrize(("check", "text", "read"), TAKEN)
def test_a_place_is_read(check: object, text: str, read: str) -> None:
    assert callable(check)
    assert check(text) == read


@pytest.mark.parametrize(("line", "says"), REFUSED)
def test_a_wrong_place_is_refused_without_its_secrets(line: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        options.parse(["bench", *line.split()][1:])
    assert says in str(refused.value)
    assert "secret" not in str(refused.value)


def test_otel_needs_no_url() -> None:
    given = options.parse(["--otel", "--prometheus", "9464"])
    assert (given.otel, given.prometheus) == ("", "127.0.0.1:9464")
    plain = options.parse([])
    assert (plain.otel, plain.prometheus) == (None, None)
