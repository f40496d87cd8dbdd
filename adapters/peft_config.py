"""PEFT's `adapter_config.json`: the options that change what an adapter computes, and the refusal of all others.

Knows nothing of tensors. An option that this file has never heard of is refused unless it is off, so that a newer
PEFT's variant of LoRA can't be served as if it were plain LoRA.
"""

from __future__ import annotations

import math
from typing import Any, BinaryIO

import msgspec

from adapters.errors import AdapterRejected
from adapters.patterns.expression import TooCostly
from adapters.patterns.lookup import ModulePatterns, pattern_errors
from adapters.safe_file import read_json_object

CONFIG_NAME = "adapter_config.json"
MAX_CONFIG_BYTES = 1024 * 1024
MAX_RANK = 256
MAX_ABS_ALPHA = 1e6

# Options that change the computation in a way we don't follow, and what to tell their owner.
_UNSUPPORTED = {
    "use_dora": "DoRA is not supported",
    "modules_to_save": "fully trained modules are not supported",
    "lora_bias": "a bias on lora_B is not supported",
    "alora_invocation_tokens": "activated LoRA is not supported",
    "fan_in_fan_out": "transposed base weights are not supported",
    "trainable_token_indices": "trained token embeddings are not supported",
    "layer_replication": "replicated layers are not supported",
    "megatron_config": "Megatron's parallel layers are not supported",
    "ensure_weight_tying": "tied adapters are not supported",
    "use_qalora": "QALoRA is not supported",
    "use_bdlora": "block-diagonal LoRA is not supported",
    "arrow_config": "Arrow routing is not supported",
    "kasa_config": "KaSA is not supported",
    "velora_config": "VeLoRA is not supported",
    "monteclora_config": "MonteCLoRA is not supported",
}
# Options of training or bookkeeping, and those that only say where the tensors are: the tensors say it themselves.
_WITHOUT_EFFECT = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "eva_config",
        "exclude_modules",
        "inference_mode",
        "layers_pattern",
        "loftq_config",
        "lora_dropout",
        "lora_ga_config",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
    }
)
# Initializations that leave the base weights as they are; the others (PiSSA, OLoRA, LoftQ, ...) change them.
_PLAIN_INITIALIZATIONS = (None, True, False, "gaussian", "eva", "orthogonal")
_OFF: tuple[Any, ...] = (None, False, [], {}, "")


class LoraConfig(msgspec.Struct, frozen=True):
    """The part of an adapter's configuration that is in force, by PEFT's names."""

    r: int = 8
    lora_alpha: float = 8
    use_rslora: bool = False
    rank_pattern: dict[str, int] = {}
    alpha_pattern: dict[str, float] = {}
    peft_type: str = ""
    task_type: str | None = None
    bias: str = "none"
    init_lora_weights: bool | str | None = True
    target_modules: list[str] | str | None = None
    target_parameters: list[str] | None = None
    layers_to_transform: list[int] | int | None = None

    def contradiction(self, layer: int, module: str, *, of_parameter: bool) -> str | None:
        """Return why PEFT would not load a tensor of this module, or None if PEFT would.

        module: a name such as `model.layers.0.self_attn.q_proj`. of_parameter: the name is a parameter's. A
        target_modules that is a regular expression is a stranger's program, and not run.
        """
        if of_parameter:
            return None if _is_named(module, self.target_parameters or []) else _NOT_NAMED.format("target_parameters")
        layers = self.layers_to_transform
        if layers is not None and layer not in ([layers] if isinstance(layers, int) else layers):
            return f"{CONFIG_NAME}: layers_to_transform leaves this layer out"
        if isinstance(self.target_modules, list) and not _is_named(module, self.target_modules):
            return _NOT_NAMED.format("target_modules")
        return None


_NOT_NAMED = f"{CONFIG_NAME}: {{}} does not name it"


def _is_named(module: str, targets: list[str]) -> bool:
    """Tell whether the targets name a module: by its whole name, or by the end of the name after a dot."""
    parts = module.split(".")
    return not {".".join(parts[first:]) for first in range(len(parts))}.isdisjoint(targets)


class RankAndScaling:
    """Rank and scaling of each module, as PEFT's `LoraLayer` computes them."""

    def __init__(self, config: LoraConfig) -> None:
        self._config = config
        self._ranks = ModulePatterns(config.rank_pattern)
        self._alphas = ModulePatterns(config.alpha_pattern)

    def of_module(self, module: str) -> tuple[int, float]:
        """Return rank and scaling of a module such as `model.layers.0.self_attn.q_proj`.

        The scaling is alpha / rank, with rsLoRA alpha / sqrt(rank) (Kalajdzievski 2023).

        Raises AdapterRejected: when the patterns take too long to match for all modules up to this one.
        """
        try:
            rank = int(self._ranks.lookup(module, self._config.r))
            alpha = self._alphas.lookup(module, self._config.lora_alpha)
        except TooCostly:
            reason = "rank_pattern and alpha_pattern have too many keys or repeats to be matched with all modules"
            raise AdapterRejected([f"{CONFIG_NAME}: {reason}; write plain names"]) from None
        return rank, alpha / math.sqrt(rank) if self._config.use_rslora else alpha / rank


def read_config(file: BinaryIO) -> LoraConfig:
    """Read PEFT's configuration.

    Raises AdapterRejected: when an option is wrong, or would be computed wrongly; the error names all of them.
    """
    file.seek(0)
    raw_bytes = file.read(MAX_CONFIG_BYTES + 1)
    if len(raw_bytes) > MAX_CONFIG_BYTES:
        raise AdapterRejected([f"{CONFIG_NAME} is over {MAX_CONFIG_BYTES} bytes"])
    raw = read_json_object(raw_bytes, CONFIG_NAME)
    reasons = [f"{CONFIG_NAME}: {reason}" for reason in _unsupported_options(raw)]
    try:
        config = msgspec.convert(raw, LoraConfig)
    except msgspec.ValidationError as error:
        raise AdapterRejected([*reasons, f"{CONFIG_NAME}: {error}"]) from None
    reasons += [f"{CONFIG_NAME}: {reason}" for reason in _wrong_values(config)]
    if reasons:
        raise AdapterRejected(reasons)
    return config


def _unsupported_options(raw: dict[str, Any]) -> list[str]:
    known = {*LoraConfig.__struct_fields__, *_WITHOUT_EFFECT}
    reasons = []
    for option, value in raw.items():
        if option in known or value in _OFF:
            continue
        reasons.append(f"{option[:100]}: {_UNSUPPORTED.get(option, 'this option is not known, so it must be off')}")
    reasons += [f"{option} is missing" for option in ("r", "lora_alpha") if option not in raw]
    return reasons


def _wrong_values(config: LoraConfig) -> list[str]:
    reasons = []
    if config.peft_type != "LORA":
        reasons.append(f"peft_type is {config.peft_type[:40]!r}; supported: 'LORA'")
    if config.task_type not in (None, "CAUSAL_LM"):
        reasons.append(f"task_type is {config.task_type[:40]!r}; supported: 'CAUSAL_LM'")
    if config.bias != "none":
        reasons.append(f"bias is {config.bias[:40]!r}; supported: 'none'")
    if config.init_lora_weights not in _PLAIN_INITIALIZATIONS:
        name = str(config.init_lora_weights)[:40]
        reasons.append(f"init_lora_weights is {name!r}, which changes the base weights; convert it to plain LoRA first")
    for name, rank in [("r", config.r), *config.rank_pattern.items()]:
        if not 1 <= rank <= MAX_RANK:
            reasons.append(f"the rank of {name[:100]!r} is {rank}; it must be 1 to {MAX_RANK}")
    for name, alpha in [("lora_alpha", config.lora_alpha), *config.alpha_pattern.items()]:
        if not abs(alpha) <= MAX_ABS_ALPHA:
            reasons.append(f"the alpha of {name[:100]!r} is {alpha}; its magnitude must be at most {MAX_ABS_ALPHA:g}")
    reasons += pattern_errors("rank_pattern", config.rank_pattern)
    reasons += pattern_errors("alpha_pattern", config.alpha_pattern)
    return reasons
