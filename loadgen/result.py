"""Result: a run on disk, and everything about it that its records do not say."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from loadgen import facts, reconcile, steady, verdict
from loadgen.errors import UsageError
from loadgen.evidence import Case
from loadgen.facts import FORMAT, Facts
from loadgen.metrics import Metrics, compute
from loadgen.record import Records
from loadgen.steady import Steady, Trim, Unsteady
from loadgen.verdict import Verdict
from loadgen.vllm_json import OURS, ResultFacts, parse_metadata, vllm_result, write_result

_LONGEST_DETAIL = 200
_LARGEST_RESULT = 1 << 30
RESULT, ARRIVALS, REPORT = "result.json", "arrivals.npz", "report.txt"


@dataclass(frozen=True, eq=False)  # columns of numbers are not to be compared by accident
class Result:
    """One run: its facts and its records; each is equal to itself alone."""

    facts: Facts
    records: Records

    @cached_property
    def metrics(self) -> Metrics:
        """The figures of the records."""
        return compute(self.records, self.facts.ask())

    @cached_property
    def verdict(self) -> Verdict:
        """Whether the figures can be believed."""
        return verdict.judge(Case(self.facts, self.records, self.metrics))

    @cached_property
    def steady(self) -> Steady | Unsteady:
        """The part of the run in which the load asked for was held."""
        profile = self.facts.profile
        trim = Trim.parse(profile.warmup, profile.cooldown)
        return steady.steady(self.records, profile.held_concurrency, trim, self.facts.ask())

    @property
    def reconciled(self) -> list[reconcile.Row]:
        """Our figures beside the server's own."""
        window = self.facts.window
        return [] if window is None else reconcile.rows(window, self.metrics, self.records)

    def json(self, detailed: bool = False) -> dict[str, Any]:
        """The result as vLLM's file has it, ours under one key."""
        return vllm_result(self.metrics, self.records, self.facts.ask(), self._about(detailed))

    def filename(self) -> str:
        """The name vLLM would give the result file."""
        return self._about(detailed=False).filename

    def _about(self, detailed: bool) -> ResultFacts:
        facts = self.facts
        return ResultFacts(
            finished=facts.finished.astimezone(),
            backend=facts.profile.backend,
            model_id=facts.server.model,
            tokenizer_id=facts.tokenizer,
            num_prompts=facts.requests,
            traffic=facts.block(),
            label=facts.label,
            burstiness=facts.profile.burstiness,
            metadata=parse_metadata(facts.metadata),
            save_detailed=detailed,
            ours=self._ours(),
        )

    def _ours(self) -> dict[str, Any]:
        """The facts, and what follows from them: that is computed again by whoever reads the file."""
        return {
            **self.facts.model_dump(mode="json"),
            "verdict": verdict.json(self.verdict),
            "steady_state": steady.json(self.steady),
            "reconciliation": [asdict(row) for row in self.reconciled],
        }

    def save(self, directory: Path, report: str) -> None:
        """Write the run directory: result, arrivals and the report as printed; raises UsageError."""
        try:
            self.records.save(directory / ARRIVALS)
            (directory / REPORT).write_text(report, "utf-8")
        except OSError as error:
            raise UsageError(
                f"cannot write {directory}: {error.strerror}; choose another --run-dir"
            ) from None
        write_result(directory / RESULT, self.json())


def load(directory: Path) -> Result:
    """The run in a directory; raises UsageError when it is not one, or of a newer format."""
    try:
        ours = _stored(directory / RESULT)[OURS]
        version = ours.get("format")
        if version != FORMAT:
            raise UsageError(
                f"{directory} has format {version}, this loadgen reads {FORMAT}: use the one that wrote it"
            )
        known = {key: ours[key] for key in Facts.model_fields if key in ours}
        found = Result(Facts.model_validate(known), Records.load(directory / ARRIVALS))
        facts.check(found.facts.profile)
        if not found.facts.profile.request_rate > 0:
            raise ValueError(f"its request_rate is {found.facts.profile.request_rate}")
    except OSError as error:
        raise UsageError(
            f"{directory} is no run directory: {error.filename or directory}: {error.strerror}"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        said = " ".join(str(error).split())[:_LONGEST_DETAIL]
        raise UsageError(f"{directory}: {RESULT} or {ARRIVALS} is damaged: {said}") from None
    return found


def _stored(path: Path) -> dict[str, Any]:
    """The JSON of a file; one that is no regular file could keep us waiting, or never end."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode) or about.st_size > _LARGEST_RESULT:
        raise ValueError(f"{path.name} is no regular file of at most {_LARGEST_RESULT >> 20} MiB")
    stored: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return stored


def create_directory(base: Path, name: str, started: datetime) -> Path:
    """A new directory for a run under `base`; raises UsageError when it cannot be written."""
    plain = re.sub(r"[^\w.-]+", "-", name)  # a profile's own name may hold anything
    stem = f"{started.astimezone():%Y%m%d-%H%M%S}-{plain}"
    for attempt in range(1, 1000):
        path = base / (stem if attempt == 1 else f"{stem}-{attempt}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}; choose another --run-dir") from None
        return path
    raise UsageError(f"{base} is full of runs of this second; choose another --run-dir")


def create_place(directory: Path, flag: str) -> None:
    """See to it that files can be written to a directory; raises UsageError that names the flag."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {directory}: {error.strerror}; choose another {flag}") from None
    if not os.access(directory, os.W_OK):
        raise UsageError(f"cannot write {directory}: permission denied; choose another {flag}")


def remove_empty(directory: Path) -> None:
    """Take away the directory of a run that left nothing."""
    with contextlib.suppress(OSError):
        directory.rmdir()


def now() -> datetime:
    """The wall clock, for people; nothing is measured by it."""
    return datetime.now(UTC)
