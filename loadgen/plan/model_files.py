"""Model files: the JSON files of a model's directory, and the token ids that they allow in a prompt."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from loadgen.base import untrusted
from loadgen.base.arrays import Int64
from loadgen.base.errors import UsageError

_MOST_JSON_BYTES = 64 << 20  # the index of the largest models has some 20
_TEXT = ("text_config", "llm_config", "language_config", "thinker_config")  # of models that see or hear
_INDEX = "model.safetensors.index.json"
T = TypeVar("T")
DEFAULT_FIRST, DEFAULT_LAST = 1000, 4999
NOT_HERE = "neither a directory nor in the local Hugging Face cache"
_ENDS = (".json", ".model", ".txt")  # of a tokenizer's and a model's files
_OPAQUE = ("tokenizer.model", "spiece.model", "tekken.json", "tiktoken.model")
_TOKENIZER = ("tokenizer.json", "vocab.json", *_OPAQUE)
_LONGEST_NAME = 200  # characters of a name of the hub, which has 96
_MOST_BYTES = 1 << 28  # of a file; the largest tokenizer.json has some 35 MB
_MOST_IDS = 1 << 22  # the greatest id; the largest vocabulary has some 300 000
_CONTROL_IDS = 1000  # Mistral keeps its control tokens below this, SentencePiece its byte tokens


def read_json_object(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Read a JSON file up to 64 MiB; return its bytes and the object; raises UsageError that names it."""
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


def find_config(path: Path) -> Path:
    """Return the path of a directory's config.json; any other path unchanged."""
    return path / "config.json" if path.is_dir() else path


def find_text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a multimodal config that describes the text decoder; else the config itself."""
    part = next((config[name] for name in _TEXT if isinstance(config.get(name), dict)), config)
    inner = part.get("text_config")  # of thinker_config
    return inner if isinstance(inner, dict) else part


def list_indexed_files(directory: Path) -> set[Path] | None:
    """List the safetensors files in a directory's index; None without one. Raises UsageError.

    A name that leads out of the directory names no part of this model and is left out.
    """
    if not (directory / _INDEX).is_file():
        return None
    _, index = read_json_object(directory / _INDEX)
    mapped = untrusted.read_mapping(index.get("weight_map")).values()
    names = {name for name in mapped if isinstance(name, str)}
    inside = (name for name in names if ".." not in Path(name).parts and not Path(name).is_absolute())
    return {directory / name for name in inside}


class Vocabulary(msgspec.Struct, frozen=True):
    """The token ids that prompts are drawn from: `allowed`, int64, ascending, not empty; their `source`."""

    allowed: Int64
    source: str

    def __post_init__(self) -> None:
        if len(self.allowed) == 0:
            raise UsageError(f"no token id is left to draw prompts from ({self.source})")

    def draw(self, rng: np.random.Generator, n: int) -> Int64:
        """Draw n of the token ids uniformly, with repeats, int64[n]."""
        return self.allowed[rng.integers(0, len(self.allowed), n)]

    def keep_below(self, bound: int, bounded_by: str) -> Vocabulary:
        """Keep the ids below `bound` and note `bounded_by` as the reason; raises UsageError if none is."""
        if int(self.allowed[-1]) < bound:
            return self
        return Vocabulary(self.allowed[self.allowed < bound], f"{self.source}, {bounded_by}")


def find_vocabulary(tokenizer: str | None, model_root: str | None, vocab_size: int | None) -> Vocabulary:
    """Find the token ids for prompts: the tokenizer's, the model's, 0…vocab_size − 1, or 1000–4999.

    `tokenizer` and `model_root` are directories or names in the local Hugging Face cache; the network is
    never asked. Every bound that is known holds: a tokenizer's ids are cut to the model's vocabulary and to
    `vocab_size`, since one id beyond it kills some servers. Raises UsageError where the path given as
    `tokenizer` does not exist, or is not readable as one; a name of the hub that is not in the cache, and
    what is unusable about `model_root`, which the user may never have typed, only go into `source`.
    """
    if vocab_size is not None and vocab_size < 1:
        raise UsageError(f"--vocab-size {vocab_size}: give the number of token ids of the model, at least 1")
    missing: list[str] = []
    vocabulary = _find_tokenizer_vocabulary(tokenizer, vocab_size, missing)
    if (directory := locate_model(model_root or "")) is not None:
        try:
            of_model = read_vocabulary(directory, vocab_size)
        except UsageError as error:
            missing.append(str(error))
        else:
            size, _ = _find_size_and_ids(_read_object(directory / "config.json"))
            if vocabulary is None:
                vocabulary = of_model
            elif size is not None:
                vocabulary = vocabulary.keep_below(size, f"below the model's vocab_size {size}")
    if vocabulary is not None and vocab_size is not None:
        vocabulary = vocabulary.keep_below(vocab_size, f"below --vocab-size {vocab_size}")
    elif vocab_size is not None:  # every id under it, special ones included: they are unknown
        vocabulary = Vocabulary(np.arange(vocab_size, dtype=np.int64), f"--vocab-size {vocab_size}")
    vocabulary = vocabulary or make_default_vocabulary()
    return Vocabulary(vocabulary.allowed, "; ".join([vocabulary.source, *missing]))


def find_vocab_size(model_root: str) -> int:
    """Find the number of ids of a model that is on this machine, by its config.json; 0 if it is unknown."""
    directory = locate_model(model_root)
    size = None if directory is None else _find_size_and_ids(_read_object(directory / "config.json"))[0]
    return size or 0


def find_tokenizer(*models: str) -> Path | None:
    """Find the directory of the first model with a tokenizer here or in the hub's local cache; else None."""
    directories = (directory for model in models if (directory := locate_model(model)) is not None)
    return next((at for at in directories if any((at / file).is_file() for file in _TOKENIZER)), None)


def make_default_vocabulary() -> Vocabulary:
    """Make the vocabulary 1000–4999: ordinary tokens in every vocabulary in use."""
    ids = np.arange(DEFAULT_FIRST, DEFAULT_LAST + 1, dtype=np.int64)
    return Vocabulary(ids, f"default ids {DEFAULT_FIRST}-{DEFAULT_LAST}")


def read_vocabulary(directory: Path, vocab_size: int | None = None) -> Vocabulary:
    """Read the token ids of the tokenizer or model in a directory; raises UsageError if there are none.

    Read from tokenizer.json, else vocab.json, else config.json's vocab_size; `vocab_size` stands in for the
    last next to a tokenizer that only its own library reads. Special and added ids are left out wherever a
    file names them, and ids that config.json's vocab_size does not cover.
    """
    config = _read_object(directory / "config.json")
    size, special = _find_size_and_ids(config)
    special |= _find_size_and_ids(_read_object(directory / "generation_config.json"))[1]
    for name, read in (("tokenizer.json", _read_tokenizer_json), ("vocab.json", _read_vocab_json)):
        if (directory / name).is_file():
            ids, special_here = read(directory / name)
            special |= special_here | _find_special_ids(directory, ids)
            bound = _MOST_IDS + 1 if size is None else size
            allowed = sorted(i for i in set(ids.values()) - special if 0 <= i < bound)
            return Vocabulary(np.array(allowed, np.int64), str(directory / name))
    if size is not None:
        return Vocabulary(_list_ordinary(size, special), f"vocab_size {size} of {directory / 'config.json'}")
    opaque = next((name for name in _OPAQUE if (directory / name).is_file()), None)
    if opaque is None:
        raise UsageError(
            f"{directory}: holds no tokenizer.json, no vocab.json and no config.json with a vocab_size; "
            "name the directory of the model or of its tokenizer"
        )
    if vocab_size is None:
        raise UsageError(
            f"{directory / opaque}: read only by its own library, and there is no config.json with a "
            "vocab_size; give --vocab-size"
        )
    ordinary = _list_ordinary(vocab_size, special)
    return Vocabulary(ordinary, f"--vocab-size {vocab_size} for {directory / opaque}")


def locate_model(name: str) -> Path | None:
    """Find a model's directory: a path, or a name's snapshot in the local Hugging Face cache; else None.

    Of several snapshots with a tokenizer or config, that of the branch `main` comes first.
    """
    if not name:
        return None
    path = Path(os.path.expanduser(name))
    if os.path.isdir(path):
        return path
    if not _is_hub_name(name):
        return None
    home = os.getenv("HF_HOME") or f"{os.getenv('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    cache = Path(os.getenv("HF_HUB_CACHE") or f"{home}/hub").expanduser()
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshots = sorted(repository.glob("snapshots/*/"))
    main = repository / "refs" / "main"
    if os.path.isfile(main):
        current = repository / "snapshots" / main.read_text("utf-8", "replace").strip()
        snapshots.sort(key=lambda snapshot: snapshot != current)
    readable = ("tokenizer.json", "vocab.json", "config.json")
    return next((s for s in snapshots if any((s / file).is_file() for file in readable)), None)


def _is_hub_name(name: str) -> bool:
    """Whether a text can be a name of the hub: 200 characters, one slash at most, no path's beginning."""
    return (
        name.count("/") <= 1
        and not name.startswith((".", "/", "~"))
        and len(name) <= _LONGEST_NAME
        and "\0" not in name
    )


def locate_tokenizer(tokenizer: str) -> Path | None:
    """Find a tokenizer's directory; None for a hub name that is not in the local cache.

    Raises UsageError for a path that does not exist, is a file, or holds nothing of a tokenizer or model.
    """
    directory, path = locate_model(tokenizer), os.path.expanduser(tokenizer)
    if directory is None and os.path.exists(path):
        raise UsageError(f"--tokenizer {tokenizer} is a file: name the directory that it is in")
    if directory is None and not _is_hub_name(tokenizer):
        raise UsageError(
            f"--tokenizer {tokenizer}: there is no such directory; prompts of token ids, the default where "
            "the API takes them, need none"
        )
    try:
        files = None if directory is None else os.listdir(directory)
    except OSError as error:
        raise UsageError(f"--tokenizer {tokenizer} cannot be read: {error.strerror}") from None
    if files is not None and not any(file.endswith(_ENDS) for file in files):
        raise UsageError(
            f"--tokenizer {tokenizer} holds no files of a tokenizer or a model: name the directory that does"
        )
    return directory


def _find_tokenizer_vocabulary(
    tokenizer: str | None, vocab_size: int | None, missing: list[str]
) -> Vocabulary | None:
    """Read the token ids of --tokenizer; None without one, or if not on this machine: added to `missing`."""
    if tokenizer is None:
        return None
    directory = locate_tokenizer(tokenizer)
    if directory is None:
        missing.append(f"--tokenizer {tokenizer} not found here: {NOT_HERE}")
        return None
    try:
        return read_vocabulary(directory, vocab_size)
    except UsageError as error:
        raise UsageError(f"--tokenizer {error}") from None


def _list_ordinary(size: int, special: set[int]) -> Int64:
    """List the probably ordinary ids of a vocabulary of which only size and some special ids are known.

    Special tokens sit together at the end (Qwen, Llama 3) or at the start (Mistral, SentencePiece), but a
    config names only two or three: so what follows a special id in the last tenth is left out, and the first
    thousand where there are enough others.
    """
    end = min((i for i in special if size * 0.9 <= i < size), default=size)
    start = _CONTROL_IDS if end >= DEFAULT_LAST + 1 else 0
    named = [i - start for i in special if start <= i < end]
    return np.delete(np.arange(start, end, dtype=np.int64), named)  # a config may claim ten million ids


class _AddedToken(msgspec.Struct):
    id: int
    content: str = ""


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]


class _TokenizerJson(msgspec.Struct):
    model: _Model
    added_tokens: list[_AddedToken] = []


def _read_tokenizer_json(path: Path) -> tuple[dict[str, int], set[int]]:
    """Read a tokenizer.json: the id of each piece, and the ids of added tokens; raises UsageError."""
    read = _read_shape(path, _TokenizerJson)
    vocab = read.model.vocab
    if isinstance(vocab, list):  # Unigram: the position is the id
        vocab = {piece: i for i, (piece, _) in enumerate(vocab)}
    return vocab, {token.id for token in read.added_tokens}


def _read_vocab_json(path: Path) -> tuple[dict[str, int], set[int]]:
    added = path.with_name("added_tokens.json")
    special = set(_read_shape(added, dict[str, int]).values()) if added.is_file() else set()
    return _read_shape(path, dict[str, int]), special


def _find_special_ids(directory: Path, ids: Mapping[str, int]) -> set[int]:
    """Collect the ids that tokenizer_config.json or special_tokens_map.json declare special."""
    special: set[int] = set()
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        config = _read_object(directory / name)
        added = config.get("added_tokens_decoder")
        if isinstance(added, dict):
            special |= {i for key in added if (i := untrusted.read_digits(str(key))) is not None}
        texts = [text for key, value in config.items() if "_token" in key for text in _list_texts(value)]
        special |= {ids[text] for text in texts if text in ids}
    return special


def _list_texts(value: object) -> Iterator[str]:
    """Yield the token texts in `"<s>"`, `{"content": "<s>"}` or a list or dict of these."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict) and isinstance(value.get("content"), str):
        yield value["content"]
    elif isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _list_texts(inner)


def _find_size_and_ids(config: Mapping[str, object]) -> tuple[int | None, set[int]]:
    """Return the least vocab_size and all special ids (eos, pad, image…) of a config and its text_config."""
    nested = config.get("text_config")
    size, special = _find_size_and_ids(nested) if isinstance(nested, dict) else (None, set())
    own_size = config.get("vocab_size")
    if type(own_size) is int and 0 < own_size <= _MOST_IDS:
        size = own_size if size is None else min(size, own_size)
    for key, value in config.items():
        if key.endswith(("_token_id", "_token_ids", "_token_index")):
            values = value if isinstance(value, list) else [value]
            special |= {i for i in values if isinstance(i, int) and 0 <= i <= _MOST_IDS}
    return size, special


def _read_object(path: Path) -> dict[str, object]:
    return read_json_object(path)[1] if path.is_file() else {}


def _read_shape(path: Path, shape: type[T]) -> T:
    """Read a JSON file up to 256 MiB as a value of type `shape`; raises UsageError if it is not such."""
    try:
        return msgspec.json.decode(untrusted.read_file_bytes(path, _MOST_BYTES), type=shape)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"{path}: not JSON of the expected form ({error}): check that the download is complete"
        ) from error
