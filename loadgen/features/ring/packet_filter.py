"""Packet filter: the kernel's program that picks the segments of our own connections, and no others.

Classic BPF, on a packet that begins with its IP header. What passes is cut off within TCP's header, before
any payload; how much is left says whether the segment is to be looked at: a SYN, or a payload that begins a
response, or may end a chunked one, as its last bytes are those of the last chunk or it is too short to tell.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

import msgspec

from loadgen.wire.http1 import HEAD_END, LONGEST_TAIL

MOST_RANGES = 650  # of source ports: a program has 4096 instructions at most
_TCP = 6
_SYN = 0x02
_DROP = 0
# Bytes of TCP's header that are kept, of one without options, and of one with room for TCP's timestamps: 12
# more. An odd number is an ordinary segment's: the last byte of what it echoes is worth least.
_ORDINARY_TCP, _MARKED_TCP = 15, 20
_OPTIONED_ORDINARY_TCP, _OPTIONED_MARKED_TCP = 31, 32
_OPTIONED = 0x80  # 8 words of header or more, in the upper half of its byte
_HEAD_BEGIN = b"HTTP"

_LOAD_BYTE, _LOAD_HALF, _LOAD_WORD, _LOAD_LENGTH = 0x30, 0x28, 0x20, 0x80
_LOAD_WORD_AT_X, _LOAD_MEMORY, _STORE_MEMORY = 0x40, 0x60, 0x02
_AND, _SHIFT_RIGHT, _ADD, _SUBTRACT, _SUBTRACT_X, _TO_X = 0x54, 0x74, 0x04, 0x14, 0x1C, 0x07
_IF_EQUAL, _IF_GREATER, _IF_AT_LEAST, _IF_SET = 0x15, 0x25, 0x35, 0x45
_GO, _RETURN = 0x05, 0x06
_INSTRUCTION = struct.Struct("HBBI")


class Headers(msgspec.Struct, frozen=True):
    """Offsets of the fields that the filter reads, in bytes from the IP header, for one IP version."""

    protocol: int  # EtherType
    first_byte: int  # version, and for IPv4 the length of a header without options
    first_mask: int
    next_header: int
    length: int
    excess: int  # what the length leaves out
    source: int
    destination: int
    size: int  # of the header; TCP's comes next
    fragment: int = 0  # 0: this version's header has no such field

    @property
    def ordinary(self) -> tuple[int, int]:
        """The bytes to capture of a segment, odd numbers: without TCP's options, and with its timestamps."""
        return self.size + _ORDINARY_TCP, self.size + _OPTIONED_ORDINARY_TCP

    @property
    def marked(self) -> tuple[int, int]:
        """The bytes to capture of a segment that may begin or end a response, even numbers, likewise."""
        return self.size + _MARKED_TCP, self.size + _OPTIONED_MARKED_TCP


HEADERS = {
    socket.AF_INET: Headers(0x0800, 0x45, 0xFF, 9, 2, 0, 12, 16, 20, fragment=6),
    socket.AF_INET6: Headers(0x86DD, 0x60, 0xF0, 6, 4, 40, 8, 24, 40),
}


class _Program(msgspec.Struct):
    """A BPF program under construction, whose jumps name labels until it is assembled."""

    lines: list[tuple[int, int, str, str]] = []
    labels: dict[str, int] = {}

    def add(self, code: int, operand: int = 0) -> None:
        self.lines.append((code, operand, "", ""))

    def jump(self, code: int, operand: int, then: str = "", otherwise: str = "") -> None:
        """Add a conditional jump to the label `then`, else to `otherwise`; "": the next instruction."""
        self.lines.append((code, operand, then, otherwise))

    def go(self, label: str) -> None:
        """Add an unconditional jump of any length; conditional ones reach 255 instructions."""
        self.lines.append((_GO, 0, label, ""))

    def label(self, name: str) -> None:
        self.labels[name] = len(self.lines)

    def assemble(self) -> bytes:
        """Return the program's instructions as the kernel takes them, labels replaced by distances."""
        return b"".join(
            _INSTRUCTION.pack(code, 0, 0, self._measure_jump(then, at))
            if code == _GO
            else _INSTRUCTION.pack(
                code, self._measure_jump(then, at), self._measure_jump(otherwise, at), operand
            )
            for at, (code, operand, then, otherwise) in enumerate(self.lines, 1)
        )

    def _measure_jump(self, label: str, after: int) -> int:
        return self.labels[label] - after if label else 0


def build_program(
    family: int, servers: Sequence[tuple[str, int]], local: str, ports: Sequence[range]
) -> bytes:
    """Build the BPF filter for segments from `servers` (address, port) to ranges of our ports."""
    headers, out = HEADERS[socket.AddressFamily(family)], _Program()
    tcp = headers.size
    out.add(_LOAD_BYTE, 0)
    out.add(_AND, headers.first_mask)
    out.jump(_IF_EQUAL, headers.first_byte, otherwise="drop")
    out.add(_LOAD_BYTE, headers.next_header)
    out.jump(_IF_EQUAL, _TCP, otherwise="drop")
    if headers.fragment:
        out.add(_LOAD_HALF, headers.fragment)
        out.jump(_IF_SET, 0x1FFF, then="drop")
    for number, (address, port) in enumerate(servers):
        _match_address(out, headers.source, family, address, otherwise=f"server {number + 1}")
        out.add(_LOAD_HALF, tcp)
        out.jump(_IF_EQUAL, port, then="ours")
        out.label(f"server {number + 1}")
    out.label("drop")
    out.add(_RETURN, _DROP)
    out.label("ours")
    _match_address(out, headers.destination, family, local, otherwise="not to us")
    out.go("to us")
    out.label("not to us")
    out.add(_RETURN, _DROP)
    out.label("to us")
    out.add(_LOAD_HALF, tcp + 2)
    _match_ports(out, ports)
    out.label("port")
    _add_tail(out, headers)
    for name, (bare, optioned) in (("ordinary", headers.ordinary), ("marked", headers.marked)):
        out.label(name)
        out.add(_LOAD_BYTE, tcp + 12)
        out.jump(_IF_AT_LEAST, _OPTIONED, otherwise=f"bare {name}")
        out.add(_RETURN, optioned)
        out.label(f"bare {name}")
        out.add(_RETURN, bare)
    return out.assemble()


def _match_address(out: _Program, at: int, family: int, address: str, otherwise: str) -> None:
    """Add code that compares the address at an offset of the packet, and goes to `otherwise` if not equal."""
    packed = socket.inet_pton(family, address.partition("%")[0])
    for i in range(0, len(packed), 4):
        out.add(_LOAD_WORD, at + i)
        out.jump(_IF_EQUAL, int.from_bytes(packed[i : i + 4]), otherwise=otherwise)


def _match_ports(out: _Program, ports: Sequence[range]) -> None:
    """Add code that goes on if a port is in one of the ascending ranges, by binary search if several."""
    if not ports:
        out.add(_RETURN, _DROP)
    elif len(ports) > 1:
        middle = len(ports) // 2
        start = ports[middle].start
        out.jump(_IF_AT_LEAST, start, otherwise=f"below {start}")
        out.go(f"from {start}")
        out.label(f"below {start}")
        _match_ports(out, ports[:middle])
        out.label(f"from {start}")
        _match_ports(out, ports[middle:])
    else:
        out.jump(_IF_AT_LEAST, ports[0].start, otherwise=f"not {ports[0]}")
        out.jump(_IF_GREATER, ports[0].stop - 1, then=f"not {ports[0]}")
        out.go("port")
        out.label(f"not {ports[0]}")
        out.add(_RETURN, _DROP)


def _add_tail(out: _Program, headers: Headers) -> None:
    """Add code that marks SYNs and payloads that begin or may end a response, and drops empty segments."""
    tcp = headers.size
    out.add(_LOAD_BYTE, tcp + 13)
    out.jump(_IF_SET, _SYN, then="marked")
    # The IP header's length, as a short frame is padded; 0 stands for one too long for the field.
    out.add(_LOAD_HALF, headers.length)
    out.jump(_IF_EQUAL, 0, otherwise="short")
    out.add(_LOAD_LENGTH)
    out.go("whole")
    out.label("short")
    out.add(_ADD, headers.excess)
    out.label("whole")
    out.add(_STORE_MEMORY, 0)
    out.add(_LOAD_BYTE, tcp + 12)
    out.add(_AND, 0xF0)
    out.add(_SHIFT_RIGHT, 2)
    out.add(_ADD, tcp)
    out.add(_TO_X)
    out.add(_LOAD_MEMORY, 0)
    out.add(_SUBTRACT_X)
    out.jump(_IF_EQUAL, 0, then="empty")
    out.jump(_IF_AT_LEAST, LONGEST_TAIL, otherwise="marked")
    out.add(_LOAD_WORD_AT_X, 0)
    out.jump(_IF_EQUAL, int.from_bytes(_HEAD_BEGIN), then="marked")
    out.add(_LOAD_MEMORY, 0)
    out.add(_SUBTRACT, LONGEST_TAIL)
    out.add(_TO_X)
    out.add(_LOAD_WORD_AT_X, 0)
    out.jump(_IF_EQUAL, int.from_bytes(HEAD_END), then="marked", otherwise="ordinary")
    out.label("empty")
    out.add(_RETURN, _DROP)
