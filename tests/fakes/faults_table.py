"""The fault table as docs/faults.md has it; run as a program, this prints it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from fakes import faults_http, faults_messages, faults_responses, faults_stream
from fakes.faults import OUTPUT, Ending, Fault

SECTIONS: dict[str, Sequence[Fault]] = {
    "Connections": faults_http.CONNECTIONS,
    "Response heads": faults_http.HEADS,
    "Statuses": faults_http.STATUSES,
    "Lengths and the connection's end": faults_http.LENGTHS,
    "Chunks and codings": faults_http.CHUNKS,
    "Writes, and bytes after the answer": faults_http.EXTRA,
    "Errors in band": faults_stream.ERRORS,
    "Ends": faults_stream.ENDS,
    "JSON": faults_stream.JSON,
    "Events": faults_stream.FORMS,
    "Usage, by where it is": faults_stream.PLACES,
    "Usage, by its numbers": faults_stream.NUMBERS,
    "Cached tokens": faults_stream.CACHED,
    "Times that the server reports": faults_stream.TIMES,
    "Anthropic's messages": faults_messages.EVENTS,
    "OpenAI's responses": faults_responses.EVENTS,
}


def outcome(ending: Ending, doubts: frozenset[str]) -> str:
    """What becomes of a request that meets the fault, in words."""
    if ending.kind is not None:
        return f"fails: {ending.kind}"
    tokens = "" if ending.tokens == OUTPUT else f", {ending.tokens} tokens"
    counted = "" if ending.usage else ", its messages counted"
    return ", ".join([f"succeeds{tokens}{counted}", *(f"doubt `{name}`" for name in sorted(doubts))])


def row(fault: Fault) -> str:
    """What becomes of it over both transports."""
    wire, httpx = (outcome(fault.over(transport), fault.doubts) for transport in ("wire", "httpx"))
    resent = ", sent again once" if fault.resent else ""
    return f"{wire}{resent}" if wire == httpx else f"{wire}{resent}; httpx {httpx}{resent}"


def lines() -> list[str]:
    """The table, a line for each outcome of a section."""
    found = [
        "| where | what the server does to every third request | what becomes of it |",
        "| --- | --- | --- |",
    ]
    for section, faults in SECTIONS.items():
        names = defaultdict[str, list[str]](list)
        for fault in faults:
            names[row(fault)].append(fault.name)
        found += [f"| {section} | {'; '.join(names[said])} | {said} |" for said in names]
    return found


if __name__ == "__main__":
    print("\n".join(lines()))
