"""Settings read from the environment, written back to it, and the table that documents them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.config.text import Field, fields_of
from gateway.settings.checks import BadSetting, check
from gateway.settings.model import ENGINE_DEFAULTS
from gateway.settings.secret_files import BadSecretFile, with_secrets
from gateway.settings.settings import Settings

PREFIX = "LORIKEET_"
URL_VARIABLE = "LORIKEET_URL"
API_KEY_VARIABLE = "LORIKEET_API_KEY"
CLIENT_VARIABLES = frozenset({URL_VARIABLE, API_KEY_VARIABLE})
"""The variables of the client command `lorikeet chat`; a server ignores them in its environment."""

_PATH_FIELDS = frozenset({"data_dir", "adapter_folder"})  # Path is not one of msgspec's types
_SECRET_FIELDS = frozenset(
    {"admin_key", "admin_password", "content_key", "database_owner_url", "database_url", "traces_headers"}
)

_OF_THE_ENGINE = {"endpoint": "LORIKEET_ENGINE_ENDPOINT"}
"""The variables of engine fields that are not named LORIKEET_<FIELD>."""

_NO_VARIABLE = frozenset({"model_dir", "adapter_cache_dir"})
"""The engine fields without a variable, which follow from LORIKEET_MODEL and LORIKEET_DATA_DIR."""

_WHERE_UNSET = {
    "adapter_store": "`adapters` in the data folder",
    "endpoint": "a socket under the data folder; pools have theirs",
}
"""The description of the default of each engine field that is derived where its variable is unset."""


class SettingRow(msgspec.Struct, frozen=True):
    """One line of the documented table."""

    name: str
    default: str
    """The default as one would write it in the environment; "" where unset."""
    doc: str


def variable(field: str) -> str:
    """Return the environment variable of a field of `Settings`, or of the engine's settings in `Settings`."""
    if field == "database_url":
        return "DATABASE_URL"
    return _OF_THE_ENGINE.get(field) or PREFIX + field.upper()


def secret_variables() -> list[str]:
    """Return the variables that hold secrets, each of which may be given as a file instead, `<variable>_FILE`."""
    return sorted(variable(field) for field in _SECRET_FIELDS)


def resolved_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the secrets that files hold, those of clients too, in place of the files' names.

    Raises BadSetting: when a file cannot be read, or both a secret and its file are given.
    """
    try:
        return with_secrets(environ, (*secret_variables(), API_KEY_VARIABLE))
    except BadSecretFile as error:
        raise BadSetting(str(error)) from None


def load_settings(environ: Mapping[str, str]) -> Settings:
    """Read every setting; an empty value counts as unset.

    Raises BadSetting: when a variable with our prefix is no setting, or a value is wrong.
    """
    environ = resolved_secrets(environ)
    known = [variable(field.name) for field in (*_fields(), *_engine_fields())]
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known and name not in CLIENT_VARIABLES:
            raise BadSetting(f"{name} is not a setting{_suggestion(name, known)}")
    engine = _values(_engine_fields(), environ)
    settings = Settings(**_values(_fields(), environ), engine=msgspec.structs.replace(ENGINE_DEFAULTS, **engine))
    check(settings)
    return settings


def settings_table() -> list[SettingRow]:
    """Return every setting with its default and one line of documentation, the engine's settings behind the model's."""
    rows = [SettingRow(variable(field.name), field.show(), field.doc) for field in _fields()]
    engine = [SettingRow(variable(field.name), field.show(), _doc(field)) for field in _engine_fields()]
    split = 1 + [row.name for row in rows].index("LORIKEET_MODEL_NAME")
    return rows[:split] + engine + rows[split:]


def variables(settings: Settings) -> dict[str, str]:
    """Return the variables of the environment from which `load_settings` reads the same settings."""
    values = {variable(field.name): getattr(settings, field.name) for field in _fields()}
    values |= {variable(field.name): getattr(settings.engine, field.name) for field in _engine_fields()}
    return {name: str(value) for name, value in values.items() if value is not None}


def _fields() -> tuple[Field, ...]:
    return fields_of(Settings)


def _engine_fields() -> tuple[Field, ...]:
    return tuple(field for field in fields_of(EngineConfig) if field.name not in _NO_VARIABLE)


def _doc(field: Field) -> str:
    where = _WHERE_UNSET.get(field.name)
    return field.doc if where is None else f"{field.doc.removesuffix('.')} (unset: {where})."


def _values(fields: tuple[Field, ...], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of those fields whose variable is set.

    Raises BadSetting: when a value is wrong.
    """
    named = ((field, variable(field.name)) for field in fields)
    return {field.name: _value(name, field, environ[name]) for field, name in named if environ.get(name)}


def _value(name: str, field: Field, text: str) -> Any:
    if field.name in _PATH_FIELDS:
        return Path(text.strip())
    try:
        return field.parse(text)
    except ValueError as error:
        shown = "" if field.name in _SECRET_FIELDS else f"={text!r}"
        raise BadSetting(f"{name}{shown}: {error}") from None


def _suggestion(name: str, known: list[str]) -> str:
    bare = {other.removeprefix(PREFIX): other for other in known}
    nearest = difflib.get_close_matches(name.removeprefix(PREFIX), bare, n=1, cutoff=0.5)
    return f"; did you mean {bare[nearest[0]]}?" if nearest else "; `lorikeet settings` lists them all"
