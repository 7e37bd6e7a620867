"""Base URLs as people paste them: where the API, its endpoint and its version are."""

from __future__ import annotations

import pytest
from msgspec.structs import astuple

from builders.loops import loop_over, read_tables
from loadgen.base.urls import (
    choose_key_headers,
    is_this_machine,
    is_unspecified,
    parse_base_url,
    read_host,
    read_port,
)

TABLES = read_tables("urls")

AZURE = "https://x.openai.azure.com/openai/deployments/gpt"


@loop_over(("url", "place"), TABLES["pasted"])
def test_a_pasted_url_is_taken_apart(url: str, place: list[str | None]) -> None:
    assert list(astuple(parse_base_url(url))) == place


@loop_over(("url", "endpoint", "place"), TABLES["given"])
def test_an_endpoint_that_is_given_stands_after_it(url: str, endpoint: str, place: list[str | None]) -> None:
    assert list(astuple(parse_base_url(url, endpoint))) == place


def test_azure_takes_its_key_in_a_header_of_its_own() -> None:
    assert choose_key_headers(AZURE) == ("api-key",)
    assert [choose_key_headers(url) for url in (None, "http://h", "http://[half")] == [("Authorization",)] * 3


@loop_over(("url", "host", "port", "here"), TABLES["hosts"])
def test_a_url_names_its_host_its_port_and_this_machine(url: str, host: str, port: int, here: bool) -> None:
    assert (read_host(url), read_port(url), is_this_machine(url)) == (host, port, here)


def test_half_an_address_has_no_host() -> None:
    assert read_host("http://[h") == ""
    assert not is_this_machine("http://[h")


@pytest.mark.parametrize(("host", "unspecified"), TABLES["unspecified"])
def test_an_address_of_everywhere_is_recognised(host: str, unspecified: bool) -> None:
    assert is_unspecified(host) is unspecified
