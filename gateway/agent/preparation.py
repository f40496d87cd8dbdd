"""The models of revisions: fetched and converted in a process of its own, checked, and measured."""

from __future__ import annotations

import asyncio
import math
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from engine.config import EngineConfig, UnsupportedModel, load_model_config
from engine.config.gguf_file import gguf_of, read_gguf
from gateway.agent.hardware import Hardware, has_bf16
from gateway.agent.model import ModelNotPrepared, preparation_command, preparation_failure
from gateway.agent.servers.adapters import num_file_bytes
from gateway.agent.servers.footprint import footprint, model_file
from gateway.db.pools.revisions import RevisionRow
from gateway.domain.pools.capacity import Estimate, Weights, estimate
from gateway.domain.pools.foreign_settings import parse_foreign_settings
from gateway.domain.pools.settings import engine_config
from gateway.settings import Settings
from gateway.support.model_folders import needs_safetensors
from gateway.support.process import die_with_parent

MAX_HEADER_BYTES = 100 << 20
PROGRESS_INTERVAL_S = 1.0

HEADS = ("lm_head.weight", "model.embed_tokens.weight")
"""Matrices with a row for each token of the vocabulary, which the engine never turns into 4-bit integers itself."""

Report = Callable[[str], Awaitable[None]]


class Prepared(msgspec.Struct, frozen=True):
    """A model that engines can be started with."""

    folder: Path
    """The folder of the prepared model."""
    base_digest: str
    """The digest of the base model."""
    estimate: Estimate
    """The memory that a replica takes on this host."""


async def prepare(settings: Settings, hardware: Hardware, revision: RevisionRow, report: Report) -> Prepared:
    """Return the model of a revision, fetched and converted first if need be.

    settings: the host's settings.
    report: gets the progress, at most once a second.

    Raises ModelNotPrepared: when no engine of this host could serve the model; the error has the reason.
    """
    settings = msgspec.structs.replace(settings, model=revision.model, model_name="")
    command = preparation_command(settings, converts=needs_safetensors(revision.driver))
    folder = await _fetch(command, report)
    try:
        _check_context(folder, revision.settings if revision.is_managed else {})
        measured = await asyncio.to_thread(measure, folder, settings.engine, revision, hardware)
    except (OSError, UnsupportedModel, ValueError) as error:
        raise ModelNotPrepared(str(error)) from None
    return Prepared(folder, await asyncio.to_thread(_checked_digest, folder), measured)


def _check_context(folder: Path, revision: Mapping[str, str]) -> None:
    """Check that a revision does not ask for a longer context than its model has.

    Raises ValueError: when the revision asks for a longer one.
    Raises UnsupportedModel or OSError: when the model's configuration cannot be used.
    """
    asked, most = int(revision.get("max_model_len", "0")), load_model_config(folder).max_position
    if asked > most:
        raise ValueError(f"max_model_len={asked} is more than the {most} positions of the model")


def _checked_digest(folder: Path) -> str:
    """Return the digest of a prepared model, once its tokenizer and chat template were read as gateways read them.

    Raises ModelNotPrepared: when they cannot be read.
    """
    from gateway.backends.engine.model import EngineModel  # heavy, and a start of the agent does without

    try:
        return EngineModel.load(folder).digest
    except Exception as error:  # whatever the libraries raise that read an operator's tokenizer and template
        raise ModelNotPrepared(f"the tokenizer or chat template in {folder} cannot be read: {error}") from None


def measure(
    folder: Path, host: EngineConfig, revision: RevisionRow, hardware: Hardware, files: Sequence[Path] = ()
) -> Estimate:
    """Return the memory that a replica of the model in a folder takes on a host.

    files: the adapters with which the replica's server starts.
    Raises UnsupportedModel, OSError, or ValueError: for settings that do not fit, or an incomplete download.
    """
    if revision.starts_servers:
        return footprint(
            revision.driver,
            model_file(revision.driver, revision.model, folder),
            weights_of(folder).num_parameters,
            load_model_config(folder),
            parse_foreign_settings(revision.settings),
            hardware,
            num_file_bytes(files),
        )
    return estimate(
        weights_of(folder),
        load_model_config(folder),
        engine_config(host, revision.engine_settings),
        gpu_bytes=hardware.gpu_bytes,
        has_bf16=has_bf16(),
    )


def weights_of(folder: Path) -> Weights:
    """Return how many elements the weights in a folder have, by the heads of its safetensors or GGUF files.

    Raises ValueError: for a file that is shorter than its header says, or that has no header.
    """
    sizes, formats = Counter[str](), Counter[str]()
    if (blocks := gguf_of(folder)) is not None:
        for name, each in read_gguf(blocks).tensors.items():
            sizes[name] = math.prod(each.shape)
            formats[each.format] += sizes[name]
    else:
        for path in sorted(folder.glob("*.safetensors")):
            sizes.update(_num_elements(path))
    return Weights(sizes.total(), sum(sizes[name] for name in HEADS), formats)


def _num_elements(path: Path) -> dict[str, int]:
    """Return how many elements each tensor of a file has, by the tensors' names.

    Raises as `weights_of`.
    """
    with path.open("rb") as file:
        num_header_bytes = int.from_bytes(file.read(8), "little")
        if not 0 < num_header_bytes <= MAX_HEADER_BYTES:
            raise ValueError(f"{path} is no file of safetensors")
        try:
            header = msgspec.json.decode(file.read(num_header_bytes), type=dict[str, dict[str, object]])
            tensors = {name: msgspec.convert(each, _Tensor) for name, each in header.items() if name != "__metadata__"}
        except msgspec.MsgspecError:
            raise ValueError(f"{path} is no file of safetensors, or only a part of one") from None
    num_bytes = 8 + num_header_bytes + max((each.data_offsets[1] for each in tensors.values()), default=0)
    if path.stat().st_size < num_bytes:
        raise ValueError(f"{path} has {path.stat().st_size} of {num_bytes} bytes: it is only a part of the download")
    return {name: math.prod(each.shape) for name, each in tensors.items()}


class _Tensor(msgspec.Struct, frozen=True):
    """An entry of a safetensors header, with only the fields that are read."""

    shape: list[int]
    data_offsets: tuple[int, int]
    """The first byte of the tensor and the one after its last, from the end of the header."""


async def _fetch(command: Sequence[str], report: Report) -> Path:
    """Run the preparation; return the folder that it prints.

    Raises ModelNotPrepared: when the preparation fails; the error has its last line.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        preexec_fn=die_with_parent(signal.SIGKILL),
    )
    assert process.stdout is not None and process.stderr is not None
    last, reported_s = "", 0.0
    try:
        async for line in process.stderr:
            last = line.decode(errors="replace").rstrip()
            now_s = asyncio.get_running_loop().time()
            if last and not last.startswith("error: ") and now_s - reported_s >= PROGRESS_INTERVAL_S:
                reported_s = now_s
                await report(last)
        folder = (await process.stdout.read()).decode().strip()
        returncode = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if returncode != 0:
        raise ModelNotPrepared(preparation_failure(last, returncode))
    return Path(folder)
