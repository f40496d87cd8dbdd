"""The tokenizer of a model folder as model hubs lay it out: `tokenizer.json`, `tokenizer_config.json`, chat templates.

Gives what transformers' fast tokenizer makes of such a folder, without that library, whose import takes longer than the
rest of a gateway's start. Knows no model's name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken, Tokenizer

from gateway.text.chat_template import Sources

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_NEEDS_TRANSFORMERS = ("fix_mistral_regex", "fast_tokenizer_files")
"""Keys of `tokenizer_config.json` that require transformers: another way to split text, or another file."""


CONFIG = "tokenizer_config.json"
_OLDER = "special_tokens_map.json"
_EXTRA, _OLDER_EXTRA = "extra_special_tokens", "additional_special_tokens"
"""The key of special tokens without a name of their own, and its older spelling."""

_WITH_SEGMENTS = ("BertTokenizer", "ElectraTokenizer")
"""Classes of tokenizers that mark segments unless `tokenizer_config.json` says otherwise."""


MOST_DIGITS = 10
"""The most digits of a token's id in a file; longer ones are refused."""


class BadTokenizer(ValueError):
    """The error for a tokenizer or chat template that cannot be used; the message names the file."""


class TokenizerFiles(msgspec.Struct, frozen=True):
    """The tokenizer of a model folder, as read from its files."""

    backend: Tokenizer
    special_tokens: dict[str, str]
    """The texts of special tokens by the name that templates have for them, such as `bos_token`."""
    templates: Sources | None
    """The chat templates. None if the model has none."""
    has_segments: bool = True
    """False if the model is never told which of two texts a token is of."""


def read_tokenizer(folder: Path) -> TokenizerFiles:
    """Read the tokenizer of a model folder.

    Raises FileNotFoundError: when `tokenizer.json` is missing.
    Raises BadTokenizer: when a file beside it has something else in place of a token, or cannot be read.
    """
    path = folder / "tokenizer.json"
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    config = _read_json(folder / CONFIG)
    if not config.get(_EXTRA):
        config[_EXTRA] = config.pop(_OLDER_EXTRA, None) or []
    _check_extra(CONFIG, config[_EXTRA])
    if "added_tokens_decoder" in config:
        declared = _added_tokens(config["added_tokens_decoder"])
    else:  # folders of older versions
        _merge(config, _read_json(folder / _OLDER))
        declared = _older_added_tokens(folder, set(_special_texts(config)))
    try:
        if any(config.get(key) for key in _NEEDS_TRANSFORMERS):
            backend = _tokenizer_by_transformers(folder)
        else:
            backend = Tokenizer.from_file(str(path))
            _add_missing(backend, declared, config)
            backend.encode_special_tokens = bool(config.get("split_special_tokens", False))
    except Exception as error:  # whatever the library raises for a file that it cannot read
        raise BadTokenizer(f"tokenizer.json cannot be read: {str(error)[:300]}") from None
    special_tokens = {name: _text(token) for name, token in _named_tokens(config)}
    return TokenizerFiles(backend, special_tokens, _templates(folder, config), _has_segments(config))


def _has_segments(config: dict[str, Any]) -> bool:
    """Tell whether transformers tells the model which of two texts a token is of."""
    names, kind = config.get("model_input_names"), config.get("tokenizer_class")
    if isinstance(names, list):
        return "token_type_ids" in names
    return not isinstance(kind, str) or kind.removesuffix("Fast") in _WITH_SEGMENTS


def _add_missing(backend: Tokenizer, declared: list[AddedToken], config: dict[str, Any]) -> None:
    """Add the declared tokens to a tokenizer that lacks them, or has them with other properties."""
    present = backend.get_added_tokens_decoder().values()
    known = {repr(token) for token in present}
    missing: list[str | AddedToken] = [token for token in declared if repr(token) not in known]
    texts = {_text(token) for token in (*present, *missing)}
    named = [token for _, token in _named_tokens(config)]
    for token in (*named, *_extra(config)):
        if _text(token) not in texts:
            texts.add(_text(token))
            missing.append(token)
    special = {_text(token) for token in named}
    if missing:
        backend.add_tokens([_as_special(token) if _text(token) in special else token for token in missing])


def _merge(config: dict[str, Any], older: dict[str, Any]) -> None:
    """Add the content of `special_tokens_map.json`, which older folders have, to that of `tokenizer_config.json`."""
    extra = older.pop(_EXTRA, None) or older.pop(_OLDER_EXTRA, None) or []
    older.pop(_OLDER_EXTRA, None)
    _check_extra(_OLDER, extra)
    if isinstance(extra, dict):
        config.update(extra)
    elif isinstance(config[_EXTRA], list):
        config[_EXTRA] += [each for each in extra if each not in config[_EXTRA]]
    config.update(older)


def _named_tokens(config: dict[str, Any]) -> Iterator[tuple[str, str | AddedToken]]:
    """Yield the special tokens that have a name, standard ones first.

    Raises BadTokenizer: when a value is neither a text nor a token's object.
    """
    others = [name for name in config if name.endswith("_token") and name not in _NAMED]
    for name in (*_NAMED, *others):
        value = config.get(name)
        if isinstance(value, str | dict):
            yield name, _token(CONFIG, name, value)
        elif value is not None and name in _NAMED:
            raise BadTokenizer(f"{CONFIG}: {name} must be the text of a token")
    named = config[_EXTRA]
    if isinstance(named, dict):
        yield from ((name, _token(CONFIG, name, value)) for name, value in named.items())


def _extra(config: dict[str, Any]) -> list[str | AddedToken]:
    """Return the additional special tokens, which have no name."""
    extra = config[_EXTRA]
    return [] if isinstance(extra, dict) else [_as_special(_token(CONFIG, _EXTRA, each)) for each in extra]


def _special_texts(config: dict[str, Any]) -> Iterator[str]:
    return (_text(token) for token in (*(token for _, token in _named_tokens(config)), *_extra(config)))


def _older_added_tokens(folder: Path, special: set[str]) -> list[AddedToken]:
    added = _read_json(folder / "added_tokens.json")
    if not all(type(each) is int for each in added.values()):
        raise BadTokenizer("added_tokens.json must have the id of each token, a whole number")
    return [
        AddedToken(text, normalized=text not in special, special=text in special)
        for text, _ in sorted(added.items(), key=lambda item: item[1])
    ]


def _templates(folder: Path, config: dict[str, Any]) -> Sources | None:
    """Return the chat templates: those in files of their own, else those in `tokenizer_config.json`."""
    files = {path.stem: path for path in (folder / "additional_chat_templates").glob("*.jinja")}
    if (folder / "chat_template.jinja").exists():
        files.setdefault("default", folder / "chat_template.jinja")
    if files:
        texts = {name: _read_text(path) for name, path in files.items()}
        return texts["default"] if len(texts) == 1 and "default" in texts else texts
    written = config.get("chat_template")
    if written and not isinstance(written, str):
        try:
            return msgspec.convert({each["name"]: each["template"] for each in written}, dict[str, str])
        except (TypeError, KeyError, msgspec.ValidationError):
            raise BadTokenizer(
                f"{CONFIG}: chat_template must be a text, or a list of objects with name and template"
            ) from None
    return written or None


def _tokenizer_by_transformers(folder: Path) -> Tokenizer:
    from transformers import PreTrainedTokenizerFast  # takes seconds to import, and few models need it

    backend: Tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True).backend_tokenizer
    return backend


def _added_tokens(given: Any) -> list[Any]:
    """Return the tokens of `added_tokens_decoder`, ordered by id.

    Raises BadTokenizer: when its value does not map ids to tokens.
    """
    key = "added_tokens_decoder"
    if not isinstance(given, dict) or not all(each.isdecimal() and len(each) < MOST_DIGITS for each in given):
        raise BadTokenizer(f"{CONFIG}: {key} must have tokens by their ids")
    return [_token(CONFIG, key, token) for _, token in sorted(given.items(), key=_number)]


def _check_extra(file: str, extra: Any) -> None:
    if not isinstance(extra, dict | list):
        raise BadTokenizer(f"{file}: {_EXTRA} must be a list of tokens, or tokens by name")


def _token(file: str, key: str, value: Any) -> Any:
    """Return a special token of a file: an object as an AddedToken, a text as text."""
    if isinstance(value, str):
        return value
    try:
        if not isinstance(value["content"], str):
            raise TypeError
        return AddedToken(**{name: each for name, each in value.items() if name != "__type"})
    except (AttributeError, KeyError, TypeError, ValueError):
        raise BadTokenizer(f"{file}: {key} must have texts, or objects with content and flags, as tokens") from None


def _as_special(token: str | AddedToken) -> AddedToken:
    if isinstance(token, str):
        return AddedToken(token, special=True)
    token.special = True
    return token


def _text(token: str | AddedToken) -> str:
    return token if isinstance(token, str) else token.content


def _number(item: tuple[str, Any]) -> int:
    return int(item[0])


def _read_json(path: Path) -> dict[str, Any]:
    """Return a file's object, or an empty one without the file.

    Raises BadTokenizer: when a file holds no object.
    """
    if not path.exists():
        return {}
    try:
        value = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise BadTokenizer(f"{path.name} is no JSON: {str(error)[:300]}") from None
    if not isinstance(value, dict):
        raise BadTokenizer(f"{path.name} holds no JSON object")
    return value


def _read_text(path: Path) -> str:
    """Return a file's text. Raises BadTokenizer: when the file cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BadTokenizer(f"{path.name} cannot be read: {str(error)[:300]}") from None
