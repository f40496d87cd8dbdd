"""The command and the environment of a server of another maker, and the files of one start of it."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from gateway.agent.commands import engine_environ
from gateway.domain.pools.addresses import key_file_of
from gateway.domain.pools.drivers import Driver
from gateway.domain.pools.foreign_settings import ForeignSettings
from gateway.settings import MAX_SOCKET_PATH_BYTES

_NAME_DIGITS = 8

ALL_LAYERS = 999
"""A number larger than any model's number of layers, by which all layers go to the accelerator."""


class ServerPlan(msgspec.Struct, frozen=True):
    """The facts from which the command of a server is made, but for the address."""

    driver: Driver
    """The kind of the server."""
    program: tuple[str, ...]
    """The program and its first arguments."""
    model: str
    """The file, or the folder, of the base model."""
    served_model: str
    """The name of the model in requests to the server."""
    length: int
    """The longest prompt and completion together, in tokens."""
    settings: ForeignSettings
    """The pool's settings for servers of other makers."""
    num_threads: int
    """Threads that compute; 0: as many as the server chooses."""
    gpu: str | None
    """The only accelerator that the server may see, by CUDA's name for it; None: the server computes on processors."""
    adapters: Sequence[str] = ()
    """Files of the adapters with which the server is started."""


def socket_path(run_dir: Path, replica_id: str, generation: int) -> Path:
    """Return the path of the socket of one start of a replica.

    The name is short, since the path of a socket has to be; llama.cpp knows a socket by the ending `.sock`.

    generation: the number of the start.
    """
    name = hashlib.sha256(replica_id.encode()).hexdigest()[:_NAME_DIGITS]
    path = run_dir / f"{name}-{generation:x}.sock"
    assert len(str(path).encode()) <= MAX_SOCKET_PATH_BYTES, path
    return path


def write_key(socket: Path) -> str:
    """Make the key of a start, in a file beside its socket that its owner alone may read; return the key.

    Files of the replica's earlier starts are deleted. None of their servers lives, but no agent may have seen the end.
    """
    name, _, _ = socket.name.partition("-")
    for left in socket.parent.glob(f"{name}-*.sock*"):
        left.unlink(missing_ok=True)
    key = secrets.token_urlsafe(32)
    path = Path(key_file_of(str(socket)))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{key}\n")
    return key


def server_command(plan: ServerPlan, socket: Path) -> list[str]:
    """Return the command of a server that listens on a socket. It holds no key: everybody can read commands."""
    return [*plan.program, *(_llama(plan, socket) if plan.driver == "llamacpp" else _vllm(plan, socket))]


def server_environ(plan: ServerPlan, key: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server: the agent's, without settings and secrets of Lorikeet.

    So variables by which the server itself is set, such as LLAMA_ARG_FLASH_ATTN, reach it from the agent.
    """
    found = engine_environ(environ, plan.gpu)
    if plan.driver == "vllm":
        found |= {"VLLM_API_KEY": key, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_NO_USAGE_STATS": "1"}
        if plan.gpu is None:
            found["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, plan.settings.kv_cache_bytes >> 30))
            if plan.num_threads:
                found["OMP_NUM_THREADS"] = str(plan.num_threads)
    return found


def _llama(plan: ServerPlan, socket: Path) -> list[str]:
    slots = plan.settings.num_slots
    flags = ["--model", plan.model, "--alias", plan.served_model, "--host", str(socket)]
    flags += ["--api-key-file", key_file_of(str(socket)), "--metrics", "--parallel", str(slots)]
    flags += ["--ctx-size", str(plan.length * slots), "--n-gpu-layers", str(0 if plan.gpu is None else ALL_LAYERS)]
    if plan.num_threads:
        flags += ["--threads", str(plan.num_threads)]
    for each in plan.adapters:
        flags += ["--lora", each]
    return [*flags, "--lora-init-without-apply"] if plan.adapters else flags


def _vllm(plan: ServerPlan, socket: Path) -> list[str]:
    settings = plan.settings
    flags = ["serve", plan.model, "--served-model-name", plan.served_model, "--uds", str(socket)]
    flags += ["--max-model-len", str(plan.length), "--max-num-seqs", str(settings.num_slots)]
    if plan.gpu is not None:
        flags += ["--gpu-memory-utilization", f"{settings.gpu_memory_fraction:g}"]
    if settings.adapter_folder:
        flags += ["--enable-lora", "--max-loras", str(min(settings.max_adapters, settings.num_slots))]
        flags += ["--max-cpu-loras", str(settings.max_adapters), "--max-lora-rank", str(settings.max_adapter_rank)]
    return flags
