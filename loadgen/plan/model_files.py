"""Model files: the JSON files of a model's directory, read one way, and what each is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadgen.base import untrusted
from loadgen.base.errors import UsageError

_MOST_JSON_BYTES = 64 << 20  # the index of the largest models has some 20
_TEXT = ("text_config", "llm_config", "language_config", "thinker_config")  # of models that see or hear
_INDEX = "model.safetensors.index.json"


def read(path: Path) -> tuple[bytes, dict[str, Any]]:
    """A file's bytes and the JSON object in them; raises UsageError that names the file."""
    try:
        raw = untrusted.read_file_bytes(path, _MOST_JSON_BYTES)
        contents = untrusted.parse_json(raw)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{path} is not valid JSON: check that the model was copied completely") from None
    if not isinstance(contents, dict):
        raise UsageError(f"{path} is not a JSON object: check that it is the model's own file")
    return raw, contents


def config_path(path: Path) -> Path:
    """The config.json of a directory; any other path itself."""
    return path / "config.json" if path.is_dir() else path


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that describes the decoder; the config itself where it has no parts."""
    part = next((config[name] for name in _TEXT if isinstance(config.get(name), dict)), config)
    inner = part.get("text_config")  # of thinker_config
    return inner if isinstance(inner, dict) else part


def indexed(directory: Path) -> set[Path] | None:
    """The safetensors files that a directory's index names; None without an index. Raises UsageError.

    A name that leads out of the directory names no part of this model and is left out.
    """
    if not (directory / _INDEX).is_file():
        return None
    _, index = read(directory / _INDEX)
    names = {
        name for name in untrusted.read_mapping(index.get("weight_map")).values() if isinstance(name, str)
    }
    inside = (name for name in names if ".." not in Path(name).parts and not Path(name).is_absolute())
    return {directory / name for name in inside}
