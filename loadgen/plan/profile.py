"""Profile: one workload by name, from a TOML file, with flags laid over it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    ValidationError,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)

from loadgen.base import parsing, untrusted
from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path
from loadgen.base.parsing import suggest_name
from loadgen.plan.planned_requests import ConcurrencySteps
from loadgen.settings.data_settings import check_conflicts, is_stepped, reads_data
from loadgen.settings.load_schedule import Bursts, LoadSchedule, RampEnds, parse_bursts, parse_schedule
from loadgen.settings.load_settings import ARRIVALS, VLLM_PROMPTS, CancelPoint, parse_cancel_point
from loadgen.settings.request_settings import SAMPLING
from loadgen.settings.setting import SESSIONS, Conflict, Makes, Setting, list_rows
from loadgen.settings.table import PROFILE_KEYS, ProfileKeys, list_profile_keys
from loadgen.settings.validation import FLAGS, ServerSettings, explain_errors, validate_table

Rung = Annotated[int, Field(ge=1, le=parsing.MOST_TOKENS, strict=True)]
_MOST_PROMPTS = 1_000_000  # where time is the limit; only their lengths exist before they are due
_MOST_TOML_BYTES = 1 << 20
_LONG_KEY = re.compile(rb"(?<![\w\"'-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){65}")  # quadratic in tomllib
_PROMPT = "the prompt is planned: use --random-input-len, --random-prefix-len, --prompt-format"
_LENGTH = "the length of a response is planned: use --random-output-len"
# Fields of a request that the plan fills in, in whichever API, and the flag to use instead.
_OWNED = {
    **dict.fromkeys(
        ("prompt", "messages", "input", "text", "input_ids", "prompt_embeds", "input_embeds"), _PROMPT
    ),
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens"), _LENGTH),
    "stream": "use --disable-stream",
    "model": "use --model, or --served-model-name",
}
_SHAPES = ARRIVALS[:-1]  # each makes a load of its own, next to the rate
_SEVERAL = ("n", "best_of", "use_beam_search")  # more answers than one, whose tokens would be one stream
_DELAY_FACTORS = {"recorded": 1.0, "none": 0.0}
_WAVE_WITHOUT_LIMIT = 8  # warm-up requests of "wave" where no concurrency limits the wave
_OF_SESSIONS = [row for row in list_rows(*PROFILE_KEYS) if row.group == SESSIONS]
_CHAT = ("turns", "image_size", "image_dir")  # without a backend, the chat API is meant where they are given
_USERS = ("users", "user_rate")
_RAMP = ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps")
# Keys of a file that a key stands in place of when it is given over them: one load for another.
_REPLACED: dict[str, tuple[str, ...]] = {
    "num_sessions": ("num_prompts",),
    "users": ("max_concurrency", "turn_delays", "think_time", *ARRIVALS),
    "schedule": ("duration", "num_prompts", "request_rate", *_RAMP, *_USERS),
    "bursts": _USERS,
    "ramp_up_strategy": ("schedule", "request_rate", "duration", *_USERS),
    "trace": ("turns", "think_time"),
    "dataset_path": ("turns", "think_time"),
    "num_prompts": ("num_sessions",),
    "max_concurrency": _USERS,
    "request_rate": ("schedule", *_RAMP, *_USERS),
    "duration": ("num_prompts", "num_sessions"),
}


def _check_rungs(value: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if value is not None and (not value or len(set(value)) < len(value)):
        raise ValueError("needs at least one input length, and none of them twice")
    return value


class FileKeys(BaseModel, frozen=True, defer_build=True):
    """The keys of a profile that only a file has, no flag."""

    ladder: Annotated[
        tuple[Rung, ...] | None,
        AfterValidator(_check_rungs),
        Setting(
            Makes.NOTHING,
            rules=(
                Conflict(
                    reads_data,
                    "{data} does not apply to a ladder: its prompts are random, of the lengths of its "
                    "profile",
                ),
            ),
        ),
    ] = None  # input lengths, for `loadgen ladder`
    # A server that is started for the profile is started with these.
    server: Annotated[ServerSettings | None, Setting(Makes.NOTHING)] = None


SUBJECTS = (*PROFILE_KEYS, FileKeys)


class Profile(FileKeys, ProfileKeys, extra="forbid", frozen=True, allow_inf_nan=False, defer_build=False):
    """A workload; each key is also a flag, spelled with dashes.

    The defaults are those of `vllm bench serve --dataset-name random`. Raises LoadgenError that names a key
    which is unknown or has a wrong value.
    """

    if not TYPE_CHECKING:  # a checker takes the parameters from the fields

        def __init__(self, **keys: Any) -> None:
            try:
                super().__init__(**keys)
            except ValidationError as error:
                raise explain_errors(error, "Profile()", Profile.model_fields) from None

        __init__.__pydantic_base_init__ = True  # what is read from files is validated without it

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, table: Any) -> Any:
        """Return the keys with those that follow from others: load, num_prompts, range_ratio, ignore_eos."""
        if not isinstance(table, dict):
            return table
        filled = {**table}
        if filled.get("dataset_name") == "random-mm":
            from loadgen.features.images import image_sizes  # few profiles have images

            image_sizes.fill_keys(filled)
        _fill_schedule(filled)
        users = filled.get("users")
        if type(users) is int and filled.get("max_concurrency") is None:
            filled["max_concurrency"] = users
        if filled.get("backend") is None and any(filled.get(name) not in (None, "") for name in _CHAT):
            filled["backend"] = "openai-chat"
        count = filled.get("num_prompts", 1)
        # vLLM's `custom` sends every row if `num_prompts` is None or below 1.
        if filled.get("dataset_name") == "custom" and (count is None or (type(count) is int and count <= 0)):
            filled["num_prompts"] = None
        elif filled.get("num_prompts") is None:
            of_file = filled.get("trace") or _recognises_rows(filled)
            ends = filled.get("duration") is not None or of_file or filled.get("num_sessions")
            turns = filled.get("turns")  # of vLLM's default number, whole sessions are sent, at least one
            each = turns if type(turns) is int and 1 <= turns <= parsing.MOST_TURNS else 1
            filled["num_prompts"] = None if ends else max(1, VLLM_PROMPTS // each) * each
        if filled.get("compat") == "inferencex":
            filled.setdefault("range_ratio", "1.0")  # its own default: every length the same
        # Random prompts with answers of a planned length: vLLM then sets ignore_eos.
        made = filled.get("dataset_name") in (None, "random", "timed_trace") and not _recognises_rows(filled)
        if not (filled.get("trace") or made):
            filled.setdefault("ignore_eos", False)
        return filled

    @field_validator("duration")
    @classmethod
    def _check_limited(cls, value: float | None, info: ValidationInfo) -> float | None:
        """Return the duration; raises ValueError if nothing limits how many requests are sent at once."""
        limit, rate = (info.data.get(name, 1) for name in ("max_concurrency", "request_rate"))
        own = _has_own_times(info.data) or any(info.data.get(key) for key in _SHAPES)
        if value is not None and limit is None and rate == math.inf and not own:
            raise ValueError("needs max_concurrency or request_rate, else everything is sent at once")
        return value

    @field_serializer("request_rate", "burstiness", when_used="json")
    def _write_infinity(self, value: float) -> float | str:
        """Write infinity as `inf`, since JSON has none; it reads back as the number."""
        return "inf" if math.isinf(value) else value

    @property
    def stages(self) -> LoadSchedule | None:
        """The parsed --schedule; None without one."""
        if not self.schedule:
            return None
        return parse_schedule(self.schedule)

    @property
    def concurrency_steps(self) -> ConcurrencySteps | None:
        """When the limit of a closed loop changes, and to how many requests; None if it does not."""
        stages = self.stages if self.stepped else None
        if stages is None:
            return None
        return ConcurrencySteps(*stages.list_steps())

    @property
    def periodic(self) -> Bursts | None:
        """The parsed --bursts; None without them."""
        if not self.bursts:
            return None
        return parse_bursts(self.bursts)

    @property
    def ramp(self) -> RampEnds | None:
        """vLLM's rate ramp; None without one, or without one of its ends."""
        begin, end = self.ramp_up_start_rps, self.ramp_up_end_rps
        if self.ramp_up_strategy is None or begin is None or end is None:
            return None
        return RampEnds(begin, end, self.ramp_up_strategy == "exponential")

    @property
    def shaped(self) -> bool:
        """Whether the planned rate, or the limit of a closed loop, changes during the run."""
        return bool(self.schedule or self.bursts or self.ramp_up_strategy)

    @property
    def shape_words(self) -> list[str]:
        """How the load changes over time, in words; [] if it does not."""
        words = [self.schedule] * bool(self.schedule)
        words += [f"bursts of {self.bursts}"] * bool(self.bursts)
        if (ramp := self.ramp) is not None:
            words.append(f"{self.ramp_up_strategy} ramp from {ramp.begin:g} to {ramp.end:g} requests/s")
        return words

    @property
    def cancel_point(self) -> CancelPoint | None:
        """When a request to be cancelled is cancelled; None if none is."""
        return parse_cancel_point(self.cancel_after) if self.cancel_rate and self.cancel_after else None

    @property
    def own_session_keys(self) -> list[str]:
        """The keys that apply to sessions alone and are not at their default, in order."""
        return [row.name for row in _OF_SESSIONS if getattr(self, row.name) != row.default]

    @property
    def sends_sessions(self) -> bool:
        """Whether its keys say that sessions are sent; a file of conversations says so itself."""
        return bool(self.own_session_keys) or self.trace_replay == "closed"

    @property
    def delay_factor(self) -> float:
        """The factor on the recorded delays between turns."""
        known = _DELAY_FACTORS.get(self.turn_delays)
        return float(self.turn_delays) if known is None else known

    @property
    def warmups(self) -> int:
        """The number of requests sent before the measured ones."""
        if self.num_warmups == "wave":
            wave = self.max_concurrency or _WAVE_WITHOUT_LIMIT
            return min(wave, self.num_prompts or wave)
        return self.num_warmups

    @property
    def most_prompts(self) -> int:
        """The number of requests, `num_prompts`; a million where only time limits a run."""
        return self.num_prompts or _MOST_PROMPTS

    @property
    def timed(self) -> bool:
        """Whether requests are sent at the times of a trace."""
        return _has_own_times(self.__dict__)

    @property
    def open_loop(self) -> bool:
        """Whether each request has a due time: by a rate, a schedule of rates, a ramp, bursts or a trace."""
        rates = math.isfinite(self.request_rate) or bool(self.bursts or self.ramp_up_strategy)
        return self.timed or rates or (bool(self.schedule) and not self.stepped)

    @property
    def stepped(self) -> bool:
        """Whether the loop is closed and its limit changes over time."""
        return is_stepped(self.__dict__)

    @property
    def sent_at_exact_rate(self) -> bool:
        """Whether N requests at a constant rate take N / rate seconds; not where a duration ends them."""
        constant = math.isfinite(self.request_rate) and not (self.shaped or self.timed)
        return self.exact_rate and constant and self.duration is None

    @property
    def mean_rate_per_s(self) -> float:
        """The mean planned rate, in requests per second, bursts included; inf if no rate is planned.

        The rate is of the schedule's stages, else of the ramp, else --request-rate.
        """
        stages, ramp, bursts = self.stages, self.ramp, self.periodic
        rate_per_s = self.request_rate
        if stages is not None and not stages.concurrency:
            rate_per_s = stages.mean_rate_per_s
        elif ramp is not None:
            rate_per_s = ramp.compute_mean_rate_per_s(self.num_prompts or VLLM_PROMPTS)
        if bursts is not None:
            rate_per_s = bursts.mean_rate_per_s + (rate_per_s if math.isfinite(rate_per_s) else 0.0)
        return rate_per_s

    @property
    def held_concurrency(self) -> int | None:
        """The requests a closed loop keeps in flight; None if times are planned or the limit changes."""
        return None if self.open_loop or self.stepped else self.max_concurrency

    @property
    def duration_ns(self) -> int:
        """For how long requests are sent (ns); 0: until the last one."""
        return int((self.duration or 0) * 1e9)

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling parameters that are set."""
        return {name: value for name in SAMPLING if (value := getattr(self, name)) is not None}


def _fill_schedule(keys: dict[str, Any]) -> None:
    """Fill into `keys` what follows from its schedule, if not given: duration and highest concurrency."""
    if not keys.get("schedule"):
        return
    try:
        stages = parse_schedule(keys["schedule"])
    except (ValueError, TypeError, AttributeError):
        return  # the field's own validator says what is wrong
    if keys.get("duration") is None:
        keys["duration"] = stages.duration_s
    if stages.concurrency and keys.get("max_concurrency") is None:
        keys["max_concurrency"] = int(stages.most)


def _has_own_times(keys: Mapping[str, Any]) -> bool:
    """Whether these keys of a profile, as far as given, select the times of a trace."""
    traced = bool(keys.get("trace")) or keys.get("dataset_name") == "timed_trace"
    return traced and keys.get("self_timed") is not False and keys.get("trace_replay") != "closed"


def _recognises_rows(keys: Mapping[str, Any]) -> bool:
    """Whether a file without a data set's name is sent, which is known by its rows."""
    return bool(keys.get("dataset_path")) and keys.get("dataset_name") is None


def has_images(profile: Profile) -> bool:
    """Whether a profile's requests carry images."""
    return bool(profile.image_size or profile.image_dir or profile.images)


def check_body(profile: Profile) -> None:
    """Raise UsageError if `extra_body` sets a field that the plan owns, making its figures untrue.

    Profiles of stored runs may have any.
    """
    body = profile.extra_body
    sampling = untrusted.read_mapping(body.get("sampling_params"))
    for name in (*body, *sampling):
        # The `text` of /v1/responses is a table, with the form of an output.
        if name in _OWNED and not isinstance(body.get(name), dict):
            raise UsageError(f"--extra-body {name}: {_OWNED[name]}")
    for name in _SEVERAL:
        values = (fields.get(name) for fields in (body, sampling))
        if any(value not in (None, False) and repr(value) != "1" for value in values):
            raise UsageError(
                f"--extra-body {name}: one response a request is measured: raise --max-concurrency instead"
            )


def find_shipped() -> Path:
    """Return the directory of the shipped profiles, in the package or next to it in a source tree."""
    package = Path(__file__).parents[1]
    inside = package / "profiles"
    return inside if inside.is_dir() else package.parent / "profiles"


def list_shipped() -> dict[str, Path]:
    """Map the names of shipped profiles to their files."""
    return {path.stem: path for path in sorted(find_shipped().glob("*.toml"))}


def locate(name_or_path: str, known: Mapping[str, Path] | None = None, kind: str = "profile") -> Path:
    """Return the path of a shipped profile by name, or the given one unchecked; raises UsageError.

    A path is what ends in `.toml` or holds a separator. `kind` names what is sought, in messages.
    """
    if name_or_path.endswith(".toml") or "/" in name_or_path:
        return expand_path(name_or_path)
    known = list_shipped() if known is None else known
    if name_or_path not in known:
        raise UsageError(
            f"unknown {kind} {name_or_path!r}{suggest_name(name_or_path, known)}: "
            f"choose from {', '.join(known)}, or give a path to a .toml file"
        )
    return known[name_or_path]


def read_toml(path: Path, kind: str = "profile") -> dict[str, Any]:
    """Read a TOML file's table; raises UsageError if unreadable, over 1 MiB, or nested over 64 deep."""
    from tomllib import loads  # flags alone need no file

    try:
        raw = untrusted.read_file_head(path, _MOST_TOML_BYTES + 1)
        if len(raw) > _MOST_TOML_BYTES:
            raise UsageError(
                f"{kind} {path} is larger than the {_MOST_TOML_BYTES >> 10} KiB that a {kind} may have"
            )
        table = {} if _LONG_KEY.search(raw) else loads(raw.decode("utf-8").replace("\r\n", "\n"))
    except OSError as error:
        raise UsageError(f"{kind} {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        why = "it is too deep" if isinstance(error, RecursionError) else error
        raise UsageError(f"{kind} {path} is not valid TOML: {why}") from None
    if _LONG_KEY.search(raw) or untrusted.is_too_deep(table):
        raise UsageError(f"{kind} {path} is more than {untrusted.DEEPEST} tables and lists deep")
    return table


def load(name_or_path: str, overrides: Mapping[str, Any], flags: bool = False) -> Profile:
    """Load a profile by name or path, with overrides laid over it; raises UsageError.

    `flags`: the user gave the overrides as flags, and errors name them so.
    """
    path = locate(name_or_path)
    table = keep_keys(read_toml(path), overrides)
    typed = overrides if flags else ()
    made = validate_table(Profile, _fill_replay({"name": path.stem, **table, **overrides}), str(path), typed)
    check_conflicts(list_rows(*SUBJECTS), made.__dict__, overrides)
    return drop_stale_description(made, table, overrides)


def _fill_replay(keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return keys with how the trace that they name is sent, by its format, unless they say it."""
    trace = keys.get("trace")
    if not trace or type(trace) is not str or "trace_replay" in keys:
        return keys
    from loadgen.plan import trace_heads  # few profiles send a trace

    return {**keys, "trace_replay": trace_heads.choose_replay(keys)}


def keep_keys(table: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a profile's keys without those that an override replaces as a group, one load by another."""
    given = {key for key, value in overrides.items() if value is not None}
    replaced = {key for name, keys in _REPLACED.items() if overrides.get(name) for key in keys}
    if is_stepped(overrides):
        replaced |= {"max_concurrency", "bursts"}
    if "max_concurrency" in given and is_stepped(table):
        replaced.add("schedule")
    return {key: value for key, value in table.items() if key not in replaced - given}


def drop_stale_description(made: Profile, table: Mapping[str, Any], overrides: Mapping[str, Any]) -> Profile:
    """Return the profile without its description if overrides make another load than it describes."""
    load = set(list_profile_keys(Makes.LOAD))
    own, over = load & table.keys(), load & overrides.keys()
    usual = {key: table.get(key, Profile.model_fields[key].default) for key in over}
    changed = bool(own) and any(getattr(made, key) != value for key, value in usual.items())
    return made.model_copy(update={"description": ""}) if changed else made


def build(table: Mapping[str, Any], origin: str = FLAGS) -> Profile:
    """Make a profile of these keys; raises UsageError that names a wrong key and the nearest valid one."""
    made = validate_table(Profile, _fill_replay(table), origin)
    check_conflicts(list_rows(*SUBJECTS), made.__dict__, table)
    return made
