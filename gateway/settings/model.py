"""Settings of the base model, its engine, and the answers that it gives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from engine.config import Count, EngineConfig, Positive
from gateway.settings.places import PlaceSettings

DEMO_MODEL_NAME = "smollm2-135m-instruct"
MODEL_NAME_PATTERN = r"^[^:\s]+$"
ENGINE_DEFAULTS = EngineConfig(model_dir="", endpoint="", adapter_store="")
"""The engine's settings where no variable is set, without the paths that follow from the data folder."""


def model_name_of(model: str) -> str:
    """Return the name of a base model for which no name is set."""
    return DEMO_MODEL_NAME if model == "demo" else Path(model).name.lower()


class ModelSettings(PlaceSettings, frozen=True, kw_only=True):
    """The settings of `PlaceSettings`, and those of the base model and its engine."""

    model: Annotated[
        str,
        Meta(description="Base model: `demo`, a folder, a `.gguf` file, or a repository id of the Hugging Face hub."),
    ] = "demo"
    model_name: Annotated[
        str,
        Meta(
            pattern=MODEL_NAME_PATTERN,
            description="Name by which requests ask for the base model (unset: derived from LORIKEET_MODEL).",
        ),
    ] = ""
    engine: EngineConfig = ENGINE_DEFAULTS
    default_max_tokens: Annotated[
        Positive, Meta(description="Largest completion, in tokens, of a request that sets no limit of its own.")
    ] = 1024
    max_shadows: Annotated[
        Count,
        Meta(
            description="Copies of requests for shadow arms of experiments that each gateway runs at once (0: none "
            "runs). More wait for some seconds, and are dropped beyond that."
        ),
    ] = 4
    reply_details: Annotated[
        bool,
        Meta(
            description="Permission for headers of replies that name the pool that answers and, of whole replies, "
            "the cost (`x-lorikeet-pool`, `x-lorikeet-cost-nanos`)."
        ),
    ] = False

    @property
    def has_remote_store(self) -> bool:
        """Tell whether adapters are kept in a bucket."""
        return self.engine.adapter_store.startswith("s3://")

    @property
    def adapter_cache_dir(self) -> Path:
        """The folder in which this machine keeps copies of adapters from a bucket."""
        return Path(self.engine.adapter_cache_dir)
