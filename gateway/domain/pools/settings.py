"""The settings of a pool's engines: the values of a revision and, for all others, those of the host's environment.

A revision has its settings as texts, by the names of `EngineConfig`, as variables and flags have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.config.text import Field, fields_of

_OF_THE_HOST = frozenset(
    {"model_dir", "endpoint", "open_endpoint", "adapter_store", "adapter_cache_dir", "adapter_cache_bytes"}
)
"""Fields of `EngineConfig` that the host and the model determine, and that no revision may set."""

POOL_SETTINGS: Mapping[str, Field] = {
    field.name: field for field in fields_of(EngineConfig) if field.name not in _OF_THE_HOST
}
"""The settings that a revision may have, by name, with their documentation."""


class BadSetting(ValueError):
    """The error for a setting that no pool can have, or not with this value; the message names the setting."""

    def __init__(self, name: str, reason: str, message: str) -> None:
        super().__init__(message)
        self.name = name
        self.reason = reason
        """The reason, without the name of the setting."""


def parse_settings(settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a revision's settings.

    Raises BadSetting: for a name that is no setting of a pool, or a value that does not fit.
    """
    values: dict[str, Any] = {}
    for name, text in settings.items():
        field = POOL_SETTINGS.get(name)
        if field is None:
            known = f"these are: {', '.join(POOL_SETTINGS)}"
            reason = "the host decides this one" if name in _OF_THE_HOST else "it is no setting of a pool"
            raise BadSetting(name, f"{reason}; {known}", f"{name!r} is no setting of a pool; {known}")
        try:
            values[name] = field.parse(text)
        except ValueError as error:
            raise BadSetting(name, str(error), f"{name}={text!r}: {error}") from None
    return values


def engine_config(host: EngineConfig, settings: Mapping[str, str]) -> EngineConfig:
    """Return the configuration of a revision's engines: the host's own, changed by the revision's settings.

    Raises as `parse_settings`.
    """
    return msgspec.structs.replace(host, **parse_settings(settings))


def differences(
    host: EngineConfig,
    settings: Mapping[str, str],
    *,
    name: str,
    model: str,
    wanted_name: str,
    wanted_model: str,
) -> dict[str, str]:
    """Return the settings by which the environment differs from a pool's row, which counts.

    The keys are the fields `model_name` and `model`, and the names of settings; the values are those of the row. A
    setting that the environment leaves at its default does not differ.
    name, model, settings: those of the row.
    host, wanted_name, wanted_model: those of the environment.
    """
    found = {}
    if wanted_name != name:
        found["model_name"] = name
    if wanted_model != model:
        found["model"] = model
    for each, value in parse_settings(settings).items():
        field = POOL_SETTINGS[each]
        if getattr(host, each) not in (field.default, value):
            found[each] = settings[each]
    return found
