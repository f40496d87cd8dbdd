"""A scenario's options as one frozen struct, whose fields are the flags of the command line, with defaults and help."""

from __future__ import annotations

import argparse
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

OptionsT = TypeVar("OptionsT", bound=msgspec.Struct)


def option_help(text: str) -> msgspec.Meta:
    """Return the help text of an option, as the metadata for the option's type annotation."""
    return msgspec.Meta(description=text)


def add_options(parser: argparse.ArgumentParser, options: type[msgspec.Struct]) -> None:
    """Add `--field-name` for each field: an int, float or str, one of a Literal, or a tuple of these."""
    defaults: Any = options()
    for name, hint in get_type_hints(options, include_extras=True).items():
        kind, text = _split(hint)
        default = getattr(defaults, name)
        settings: dict[str, Any] = {"default": default, "help": f"{text} (default: {_default_text(default)})"}
        if get_origin(kind) is tuple:
            kind = get_args(kind)[0]
            settings["nargs"] = "*"
        if get_origin(kind) is Literal:
            settings["choices"] = get_args(kind)
            kind = str
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, **settings)


def read_options(options: type[OptionsT], args: argparse.Namespace) -> OptionsT:
    """Return the options that the command line gives."""
    values = {name: getattr(args, name) for name in options.__struct_fields__}
    return options(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def _split(hint: Any) -> tuple[Any, str]:
    """Return the type of an option's field, and the help within its annotation."""
    if get_origin(hint) is not Annotated:
        return hint, ""
    kind, *notes = get_args(hint)
    return kind, "".join(note.description or "" for note in notes if isinstance(note, msgspec.Meta))


def _default_text(default: object) -> str:
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
