"""Every setting of Lorikeet: one frozen struct, read once from the environment.

An unknown name, or a value that does not fit, stops the start with one line that names it and the reason. Knows nothing
about the settings' effects: it only types, bounds and derives them.
"""

from gateway.settings.checks import BadSetting
from gateway.settings.model import DEMO_MODEL_NAME, ENGINE_DEFAULTS, model_name_of
from gateway.settings.places import MAX_SOCKET_PATH_BYTES
from gateway.settings.reading import (
    API_KEY_VARIABLE,
    CLIENT_VARIABLES,
    PREFIX,
    URL_VARIABLE,
    SettingRow,
    load_settings,
    resolved_secrets,
    secret_variables,
    settings_table,
    variable,
    variables,
)
from gateway.settings.settings import Settings

__all__ = [
    "API_KEY_VARIABLE",
    "CLIENT_VARIABLES",
    "DEMO_MODEL_NAME",
    "ENGINE_DEFAULTS",
    "MAX_SOCKET_PATH_BYTES",
    "PREFIX",
    "URL_VARIABLE",
    "BadSetting",
    "SettingRow",
    "Settings",
    "load_settings",
    "model_name_of",
    "resolved_secrets",
    "secret_variables",
    "settings_table",
    "variable",
    "variables",
]
