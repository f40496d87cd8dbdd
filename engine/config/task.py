"""Read from a base model's folder the task that it was made for: text, embeddings or relevance scores.

Folders of models that embed or rank have the files of sentence-transformers beside `config.json`: `modules.json` lists
what follows the transformer, each with a folder of its own. Knows no tensor; code of a folder is never run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from engine.config.model import Pooling, Task, UnsupportedModel
from engine.config.values import beginning_of

MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
TRANSFORMER = ("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_xlm-roberta_config.json")
"""The names of the file with the transformer's own settings; a folder has one of them."""
CLASSIFIER = "ForSequenceClassification"
MAX_PROMPTS, MAX_PROMPT_CHARS = 200, 8192

_POOLINGS: dict[str, Pooling] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
_OLD_POOLINGS = {  # the spelling of before version 6
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def files_of_task(folder: Path) -> list[Path]:
    """Return the files beside `config.json` that say what the model is for, as far as they are there."""
    names = (MODULES, PROMPTS, *TRANSFORMER)
    parts = sorted(folder.glob("[0-9]*_*/config.json"))
    return [path for path in (*(folder / name for name in names), *parts) if path.is_file()]


def task_of(folder: Path, raw: Mapping[str, Any], *, is_encoder: bool) -> Task:
    """Return the task of a model, as its folder says.

    raw: the content of its `config.json`. is_encoder: True: each token of the model sees all others, which decides the
    usual pooling.

    Raises UnsupportedModel: when a module or a pooling is one that the engine does not compute; the error names it.
    """
    architectures = raw.get("architectures")
    is_classifier = isinstance(architectures, list) and any(str(name).endswith(CLASSIFIER) for name in architectures)
    modules = _modules(folder)
    kinds = [kind for kind, _ in modules]
    prompts, default = _prompts(folder)
    longest, begins_answer = _transformer(folder)
    task = Task(prompts=prompts, default_prompt=default, begins_answer=begins_answer, max_length=longest)
    if "LogitScore" in kinds:
        yes, no = _tokens(folder / modules[kinds.index("LogitScore")][1])
        return msgspec.structs.replace(task, kind="rerank", pooling="last", scored_by="tokens", tokens=(yes, no))
    if is_classifier:
        _check_labels(raw)
        pooling = _classifier_pooling(raw) if is_encoder else "last"
        return msgspec.structs.replace(task, kind="rerank", pooling=pooling, scored_by="classifier")
    if "Pooling" in kinds:
        pooling, size = _pooling(folder / modules[kinds.index("Pooling")][1])
        if size not in (None, raw.get("hidden_size"), raw.get("dim"), raw.get("n_embd")):
            raise UnsupportedModel(
                f"{MODULES}: the embeddings of the pooling have {size} numbers; the model has others"
            )
        return msgspec.structs.replace(task, kind="embed", pooling=pooling, is_normalized="Normalize" in kinds)
    return msgspec.structs.replace(task, kind="embed") if is_encoder else Task()


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Return the kind of each module, and the name of its folder; [] without the file."""
    listed = _read(folder / MODULES, list)
    known = {"Transformer", "Pooling", "Normalize", "LogitScore"}
    modules = []
    for each in listed or ():
        kind, path = (each.get("type"), each.get("path", "")) if isinstance(each, dict) else (None, "")
        if not isinstance(kind, str) or not isinstance(path, str) or path in (".", "..") or "/" in path or "\\" in path:
            raise UnsupportedModel(f"{MODULES} must list modules, each with a type, and a folder beside it as path")
        name = kind.rpartition(".")[2]
        if not kind.startswith("sentence_transformers.") or name not in known:
            raise UnsupportedModel(f"{MODULES}: {kind[:80]} is not supported; supported: {', '.join(sorted(known))}")
        modules.append((name, path))
    return modules


def _pooling(folder: Path) -> tuple[Pooling, Any]:
    """Return the pooling, and the size of its embeddings where it names one."""
    name = f"{folder.name}/config.json"
    given = _read(folder / "config.json", dict)
    if given is None:
        raise UnsupportedModel(f"{name} does not exist")
    mode = given.get("pooling_mode")
    if mode is None:
        on = [mode for key, mode in _OLD_POOLINGS.items() if given.get(key)]
        mode = on[0] if len(on) == 1 else on or "mean"
    if isinstance(mode, list) and len(mode) == 1:
        mode = mode[0]
    if not isinstance(mode, str) or mode not in _POOLINGS:
        raise UnsupportedModel(f"{name}: pooling_mode is {beginning_of(mode)}; supported: {', '.join(_POOLINGS)}")
    if given.get("include_prompt", True) is not True:
        raise UnsupportedModel(f"{name}: include_prompt is false, which is not supported")
    return _POOLINGS[mode], given.get("embedding_dimension", given.get("word_embedding_dimension"))


def _tokens(folder: Path) -> tuple[int, int | None]:
    """Return the ids of the tokens that mean relevant and not relevant, the second one None where there is none."""
    name = f"{folder.name}/config.json"
    given = _read(folder / "config.json", dict) or {}
    yes, no = given.get("true_token_id"), given.get("false_token_id")
    if type(yes) is not int or yes < 0 or not (no is None or (type(no) is int and no >= 0)):
        raise UnsupportedModel(f"{name}: true_token_id and false_token_id must be token ids")
    return yes, no


def _check_labels(raw: Mapping[str, Any]) -> None:
    """Check that a classifier has one label: its score.

    Raises UnsupportedModel: when the config has any other number of labels.
    """
    labels = raw.get("id2label")
    count = len(labels) if isinstance(labels, dict) else raw.get("num_labels", 2)
    if count != 1:
        raise UnsupportedModel(f"config.json: the classifier has {count} labels; a model that ranks has one")


def _classifier_pooling(raw: Mapping[str, Any]) -> Literal["cls", "mean"]:
    pooling = raw.get("classifier_pooling", raw.get("clf_pooling", "cls"))
    if pooling not in ("cls", "mean"):
        raise UnsupportedModel(f"config.json: classifier_pooling is {beginning_of(pooling)}; supported: cls, mean")
    return pooling  # type: ignore[no-any-return]


def _prompts(folder: Path) -> tuple[dict[str, str], str]:
    """Return the prompts that the model puts before texts, by name, and the name of the default one; "" without one."""
    given = _read(folder / PROMPTS, dict) or {}
    prompts, default = given.get("prompts") or {}, given.get("default_prompt_name") or ""
    if not isinstance(prompts, dict) or len(prompts) > MAX_PROMPTS or not isinstance(default, str):
        raise UnsupportedModel(f"{PROMPTS}: prompts must have at most {MAX_PROMPTS} texts by name")
    prompts = {name: text for name, text in prompts.items() if text is not None}
    if not all(isinstance(text, str) and len(text) <= MAX_PROMPT_CHARS for text in prompts.values()):
        raise UnsupportedModel(f"{PROMPTS}: a prompt must be a text of at most {MAX_PROMPT_CHARS} characters")
    if default and default not in prompts:
        raise UnsupportedModel(
            f"{PROMPTS}: default_prompt_name is {beginning_of(default)}, but prompts has none of that name"
        )
    return prompts, default


def _transformer(folder: Path) -> tuple[int | None, bool]:
    """Return the most tokens of a text, and whether prompts end with the beginning of an answer.

    Both are settings in sentence-transformers' files; the number is None where no file has it.
    """
    for name in TRANSFORMER:
        given = _read(folder / name, dict)
        if given is None:
            continue
        if given.get("do_lower_case"):
            raise UnsupportedModel(f"{name}: do_lower_case is not supported")
        longest = given.get("max_seq_length")
        if longest is not None and (type(longest) is not int or longest < 1):
            raise UnsupportedModel(f"{name}: max_seq_length must be a whole number above 0")
        asked = given.get("processing_kwargs")
        for_template = asked.get("chat_template") if isinstance(asked, dict) else None
        return longest, isinstance(for_template, dict) and for_template.get("add_generation_prompt") is True
    return None, False


def _read(path: Path, kind: type[Any]) -> Any:
    """Return the content of a JSON file; None without the file.

    Raises UnsupportedModel: when the file is not JSON of this kind.
    """
    try:
        value = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnsupportedModel(f"{path.name} cannot be read: {error}") from None
    if not isinstance(value, kind):
        raise UnsupportedModel(f"{path.name} must hold a JSON {'list' if kind is list else 'object'}")
    return value
