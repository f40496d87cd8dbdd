"""The pools of one gateway, made of the base models that it serves: a backend for each engine, and its tokenizer.

Knows neither HTTP nor who may call a model.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from adapters.inspection import BaseShape
from engine.config import ModelConfig, load_model_config, model_digest
from gateway.backends.engine.client import EngineBackend
from gateway.backends.pool import Pool
from gateway.backends.usage import UsageSink
from gateway.domain.routing.bases import Base, Bases
from gateway.text.tokenizer import Tokenizer


class ServedModel(msgspec.Struct, frozen=True):
    """A base model, and where its engine listens."""

    name: str
    """The public name of the pool."""
    folder: Path
    """The prepared model."""
    endpoint: str
    """The engine's ZeroMQ endpoint."""


class LoadedModel(msgspec.Struct, frozen=True):
    """A served model, with what is read of its folder."""

    served: ServedModel
    digest: str
    config: ModelConfig
    tokenizer: Tokenizer


def load(models: Sequence[ServedModel]) -> list[LoadedModel]:
    """Read each model's configuration, digest and tokenizer from its folder."""
    return [
        LoadedModel(each, model_digest(each.folder), load_model_config(each.folder), Tokenizer.from_folder(each.folder))
        for each in models
    ]


def bases_of(models: Sequence[LoadedModel], former_names: Mapping[str, str]) -> Bases:
    """Return the bases of models; former_names as in `Bases`."""
    return Bases(
        [
            Base(each.served.name, each.digest, BaseShape(each.config.adapter_targets(), each.config.num_layers))
            for each in models
        ],
        former_names,
    )


def make_pools(models: Sequence[LoadedModel], *, database_id: str, sink: UsageSink) -> dict[str, Pool]:
    """Return a pool for each model, by name, whose backends are not started. sink: where usage goes."""
    pools = {}
    for each in models:
        backend = EngineBackend(
            each.served.endpoint,
            database_id=database_id,
            model_digest=each.digest,
            config=each.config,
            tokenizer=each.tokenizer,
            sink=sink,
        )
        pools[each.served.name] = Pool(each.served.name, [backend], created=int(time.time()))
    return pools
