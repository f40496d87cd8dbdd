"""Settings as people write them: variables, flags and their documentation, made from the fields of a struct.

The struct is the only list. The annotation of a field holds its type, its bounds and, as the description, one sentence
of documentation. A field whose name ends in `_bytes` may be written with a unit. Knows no particular setting.
"""

from __future__ import annotations

import argparse
import functools
import re
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, Union

import msgspec
from msgspec import NODEFAULT, UNSET, Meta

ConfigT = TypeVar("ConfigT", bound=msgspec.Struct)

WHOLE_FLAG = "--config"
"""The flag that takes a whole struct, as JSON."""

_BYTE_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}

_KINDS = {"`bool`": "true or false", "`int`": "a whole number", "`float`": "a number", "`str`": "a text"}
"""Words for the kinds of values, by the names that msgspec gives the kinds in its errors."""


class Field(msgspec.Struct, frozen=True):
    """A setting: one field of a settings struct."""

    name: str
    hint: Any
    """The type of the setting with its bounds, as annotated."""
    doc: str
    """One sentence of documentation."""
    default: Any
    """The value where none is given; msgspec's NODEFAULT where one must be given."""

    @property
    def is_bytes(self) -> bool:
        """Tell whether a value is a number of bytes, which may be written as `512MiB`."""
        return self.name.endswith("_bytes")

    @property
    def flag(self) -> str:
        """The flag of the setting on a command line."""
        return f"--{self.name.replace('_', '-')}"

    def parse(self, text: str) -> Any:
        """Return the value that a text means.

        Raises ValueError: when the text means no value of the setting; the message does not repeat the text.
        """
        raw: Any = _parse_bytes(text) if self.is_bytes else text.strip()
        try:
            return msgspec.convert(raw, self.hint, strict=False)
        except msgspec.ValidationError as error:
            choices = _choices(self.hint) if "enum" in str(error) else ()
            why = f"Expected one of {', '.join(choices)}" if choices else str(error).removesuffix(", got `str`")
            for kind, words in _KINDS.items():
                why = why.replace(kind, words)
            raise ValueError(why) from None

    def show(self) -> str:
        """Return the default as one would write it, or "" where there is none."""
        if self.default is None or self.default is NODEFAULT:
            return ""
        if self.is_bytes:
            return f"{self.default >> 20}MiB"
        if isinstance(self.default, bool):
            return str(self.default).lower()
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


@functools.cache  # a struct's hints take ten milliseconds to read
def fields_of(struct: type[msgspec.Struct]) -> tuple[Field, ...]:
    """Return the documented fields of a struct, in their order; a field without a description is left out."""
    hints = typing.get_type_hints(struct, include_extras=True)
    found = []
    for field in msgspec.structs.fields(struct):
        hint = hints[field.name]
        notes = [note.description for note in getattr(hint, "__metadata__", ()) if isinstance(note, Meta)]
        doc = next(filter(None, notes), None)
        if doc is not None:
            found.append(Field(field.name, hint, doc, field.default))
    return tuple(found)


def read_flags(parser: argparse.ArgumentParser, struct: type[ConfigT], argv: Sequence[str] | None = None) -> ConfigT:
    """Read a struct from a command line: a flag for each field, or all of it as JSON after `--config`.

    argv: the words of the command line, without the program's name; None: those of this process. A missing, unknown or
    wrong flag ends the process with the parser's usage and one line that names the flag.
    """
    fields = fields_of(struct)
    parser.add_argument(WHOLE_FLAG, metavar="JSON", help="all settings as one JSON object, in place of other flags")
    for field in fields:
        parser.add_argument(
            field.flag,
            dest=field.name,
            type=_argument(field.parse),
            default=UNSET,
            metavar="|".join(_choices(field.hint)) or field.name.rpartition("_")[2].upper(),
            help=f"{field.doc} (required)" if field.default is NODEFAULT else _with_default(field),
        )
    values = vars(parser.parse_args(argv))
    whole = values.pop(WHOLE_FLAG.removeprefix("--"))
    given = {field.name: values[field.name] for field in fields if values[field.name] is not UNSET}
    if whole is None:
        missing = [field.flag for field in fields if field.default is NODEFAULT and field.name not in given]
        if missing:
            parser.error(f"the following arguments are required: {', '.join(missing)}")
        return struct(**given)
    if given:
        parser.error(f"{WHOLE_FLAG} takes the place of all other flags")
    try:
        return msgspec.json.decode(whole, type=struct)
    except msgspec.MsgspecError as error:
        parser.error(f"{WHOLE_FLAG}: {error}")


def whole_flag(config: msgspec.Struct) -> list[str]:
    """Return the arguments that `read_flags` turns back into the same struct."""
    return [WHOLE_FLAG, msgspec.json.encode(config).decode()]


def _argument(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a parser of one argument whose error argparse shows as it is."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None

    return read


def _with_default(field: Field) -> str:
    text = f"{field.doc} (default: {field.show()})" if field.show() else field.doc
    return text.replace("%", "%%")


def _choices(hint: Any) -> tuple[str, ...]:
    """Return the values of a Literal, also of an annotated one; () for any other type."""
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    if hasattr(hint, "__metadata__"):
        return _choices(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (Union, types.UnionType):
        return next(filter(None, map(_choices, typing.get_args(hint))), ())
    return ()


def _parse_bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", text.strip())
    unit = _BYTE_UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise ValueError("Expected a number of bytes, plain or with KiB, MiB or GiB")
    return int(match[1]) * unit
