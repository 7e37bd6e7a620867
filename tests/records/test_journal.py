"""The journal: what was added is read again, wherever the file was cut and whatever the disk refused."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from builders.loops import loop_over
from loadgen.base import clock
from loadgen.records import journal
from loadgen.records.journal import Journal, Tail
from loadgen.records.record import Record, Records
from loadgen.transport.failure import Failure, FailureKind

MS = 1_000_000
FACTS = b'{"format": 2}'


def record(index: int, failure: Failure | None = None) -> Record:
    sent_ns = 10**12 + index * MS
    arrival_ns = sent_ns + np.arange(1, 4, dtype=np.int64) * MS
    return Record(
        index, index % 2, sent_ns, sent_ns, int(arrival_ns[-1]), arrival_ns=arrival_ns, reads=3,
        tokens=np.ones(3, np.int64), finish_reason="length", output_tokens=3, failure=failure,
    )  # fmt: skip


ROWS = [record(4), record(0), record(1, Failure(FailureKind.TRUNCATED, "cut")), record(3), record(2)]


def same(one: Records, other: Records) -> bool:
    return one.pack() == other.pack()


def kept(path: Path | None, rows: list[Record], batch: int = 2) -> Journal:
    made = Journal(path)
    made.put_facts(FACTS)
    for at, row in enumerate(rows, 1):
        made.add(row)
        if at % batch == 0:
            made._flush()
    return made


def test_the_file_alone_gives_facts_and_requests(tmp_path: Path) -> None:
    path = tmp_path / "j"
    made = kept(path, ROWS)
    made.put_facts(b'{"format": 2, "finished": true}')
    made.finish()
    made.close()
    found = journal.read_journal(path)
    assert (found.facts, found.end) == (b'{"format": 2, "finished": true}', found.size)
    assert same(Records.join(journal.open_parts(path)), Records.from_records(ROWS))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_cut_at_any_byte_gives_every_frame_before_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "j"
    made = kept(path, ROWS, batch=1)
    made.finish()
    made.close()
    whole, counts = path.read_bytes(), []
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        found = journal.read_journal(path)
        assert found.size == cut
        assert found.facts in (b"", FACTS)
        counts.append(sum(len(part) for part in journal.open_parts(path)))
    assert counts == sorted(counts)
    assert set(counts) == {0, 1, 2, 3, 4, 5}
    assert (counts[0], counts[-2], counts[-1]) == (0, 4, 5)


@pytest.mark.parametrize("place", [0.5, 0.7, 0.999])
def test_a_damaged_byte_costs_its_frame_and_what_follows(place: float, tmp_path: Path) -> None:
    path = tmp_path / "j"
    kept(path, ROWS, batch=1).close()
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 0x40
    path.write_bytes(data)
    found = journal.read_journal(path)
    assert found.facts == FACTS
    assert found.end < found.size
    assert 0 <= sum(len(part) for part in journal.open_parts(path)) < 5


@pytest.mark.parametrize("begin", [b"loadgen journal 9\n", b"PK\x03\x04", b"\0"])
def test_another_kind_of_file_is_refused(begin: bytes, tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(begin)
    with pytest.raises(ValueError, match="not a journal"):
        journal.read_journal(path)


def full_disk(monkeypatch: pytest.MonkeyPatch, room: int, code: int = errno.ENOSPC) -> Callable[[], None]:
    """os.write takes so many bytes more and then none; calling what is returned makes room again."""
    left, real = [room], os.write

    def write(file: int, data: bytes) -> int:
        if left[0] <= 0:
            raise OSError(code, os.strerror(code))
        taken = real(file, bytes(data)[: left[0]])
        left[0] -= taken
        return taken

    monkeypatch.setattr(os, "write", write)
    return lambda: left.__setitem__(0, 1 << 40)


@loop_over("room", [0, 10, 200, 700, 1100])
@loop_over("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_takes_no_more_costs_nothing_that_was_measured(
    room: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []
    path = tmp_path / "j"
    full_disk(monkeypatch, room, code)
    made = Journal(path, warned.append)
    made.put_facts(FACTS)
    for row in ROWS:
        made.add(row)
        made._flush()
    made.finish()
    assert made.error == f"{path}: {os.strerror(code)}"
    assert len(warned) == 2  # once when it failed, once when it was tried again at the end
    assert same(made.records(), Records.from_records(ROWS))
    made.close()
    found = journal.read_journal(path)
    assert found.end == found.size  # no half frame stays


def test_room_that_comes_back_is_used_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j"
    make_room = full_disk(monkeypatch, 700)
    made = kept(path, ROWS, batch=1)
    assert made.error
    make_room()
    made.finish()
    assert made.error == ""
    made.close()
    assert journal.read_journal(path).facts == FACTS
    assert same(Records.join(journal.open_parts(path)), Records.from_records(ROWS))


def test_a_file_that_is_removed_meanwhile_is_read_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "j"
    made = kept(path, ROWS)
    path.unlink()
    assert same(made.records(), Records.from_records(ROWS))
    made.remove()


def test_a_request_waits_a_quarter_of_a_second_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = [0]
    monkeypatch.setattr(clock, "now_ns", lambda: now_ns[0])
    path = tmp_path / "j"
    made = Journal(path)
    made.put_facts(FACTS)
    before = path.stat().st_size
    made.add(ROWS[0])
    now_ns[0] = 249 * MS
    made.write()
    assert path.stat().st_size == before
    now_ns[0] = 250 * MS
    made.write()
    assert path.stat().st_size > before
    made.close()


def test_without_disk_space_a_long_run_is_joined_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = Records.join

    def full(parts: object, spill: Path | None = None) -> Records:
        if spill is not None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return joined(parts)  # type: ignore[arg-type]

    made = kept(tmp_path / "j", ROWS)
    monkeypatch.setattr(Records, "join", full)
    assert same(made.records(tmp_path), Records.from_records(ROWS))
    made.close()


def test_a_tail_reads_each_frame_once_and_none_that_is_half_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.bin"
    made = kept(path, [record(index) for index in range(4)])
    other = made.open_part(0)
    tail = Tail(made)

    def read() -> list[int]:
        return [int(index) for part in tail.read() for index in part.index]

    assert read() == [0, 1, 2, 3]
    assert read() == []
    other.add(record(9))
    other.finish()
    made.put_facts(b"{}")
    made.add(record(4))
    made.finish()
    assert sorted(read()) == [4, 9]
    whole = path.read_bytes()
    made.add(record(5))
    made.finish()
    frame = path.read_bytes()[len(whole) :]
    for cut in (1, len(frame) // 2, len(frame) - 1):
        os.truncate(path, len(whole))
        with path.open("ab") as file:
            file.write(frame[:cut])
        assert read() == []
    with path.open("ab") as file:
        file.write(frame[cut:])
    assert read() == [5]
    made.close()
