"""Builds a decoder that transformers computes from a folder, proves it, and finds what adapters may target on it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch

from adapters.patterns.module_names import module_name
from engine.config import ModelConfig
from engine.config.general import linear_modules
from engine.models.general.decoder import GeneralDecoder
from engine.models.general.linears import StepAdapters, adapt_linears, mark_rows, settle_linears
from engine.models.general.loading import check_sizes, load_model, read_config
from engine.models.general.norms import replace_norms
from engine.models.general.proof import prove
from engine.models.general.trial import NUM_ROWS, try_model

log = logging.getLogger(__name__)


class GeneralModel(NamedTuple):
    """A decoder that transformers computes, and its configuration with the modules that adapters may target."""

    config: ModelConfig
    decoder: GeneralDecoder


@torch.inference_mode()
def load_general(model_dir: str | Path, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> GeneralModel:
    """Load a model, and prove by sample texts that the engine computes what transformers does.

    Raises UnsupportedModel: when something is missing; the error names the key or the tensor.
    """
    folder = Path(model_dir)
    theirs = read_config(folder, config.family)
    check_sizes(theirs, config)
    model = load_model(folder, theirs, dtype, device)
    adapters = StepAdapters()
    replace_norms(model)
    linears = adapt_linears(model, adapters)
    tried = try_model(model, adapters, config.num_layers)
    mark_rows(linears, tried.calls, NUM_ROWS)
    modules = linear_modules(
        (
            (module_name(each.layer, each.name), (each.out_features, each.in_features))
            for each in linears
            if each.takes_adapters
        ),
        config.num_layers,
    )
    targets = {name for name, _, _ in modules}
    for linear in linears:
        linear.takes_adapters = linear.name in targets
    groups = settle_linears(linears, tried.calls, adapters)
    decoder = GeneralDecoder(model, tried.layers, adapters, tried.output_class)
    prove(model, decoder)
    log.info(
        "transformers computes this model (%s), more slowly than code of the engine's own would; adapters on: %s",
        type(model).__name__,
        ", ".join(name for name, _, _ in modules) or "nothing",
    )
    return GeneralModel(msgspec.structs.replace(config, modules=modules, groups=groups), decoder)
