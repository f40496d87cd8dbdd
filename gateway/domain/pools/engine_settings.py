"""Engine settings that a pool may have of its own, by the names of `EngineConfig`, as texts. Knows no defaults."""

from __future__ import annotations

from collections.abc import Mapping

from engine.config import EngineConfig
from engine.config.text import Field, fields_of

OF_THE_HOST = frozenset({"model_dir", "endpoint", "adapter_store", "adapter_cache_dir", "adapter_cache_bytes"})
"""Settings that the agent of a host decides, or that all engines of a host share."""

OF_A_POOL: Mapping[str, Field] = {
    field.name: field for field in fields_of(EngineConfig) if field.name not in OF_THE_HOST
}
"""The settings that a pool may have of its own, by name."""


class BadEngineSetting(ValueError):
    """A setting that no pool can have, or not with this value; the message says why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name


def check_engine_settings(settings: Mapping[str, str]) -> None:
    """Raise BadEngineSetting for a name that is no setting of a pool, or for a value that the setting cannot have."""
    for name, text in settings.items():
        field = OF_A_POOL.get(name)
        if field is None:
            known = ", ".join(sorted(OF_A_POOL))
            why = "the host decides it" if name in OF_THE_HOST else "no engine setting is called so"
            raise BadEngineSetting(name, f"{why}; a pool may set {known}")
        try:
            field.parse(text)
        except ValueError as error:
            message = str(error)
            raise BadEngineSetting(name, message[:1].lower() + message[1:]) from None
