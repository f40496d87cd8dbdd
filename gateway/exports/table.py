"""A table for exports: named, typed columns, read off the struct of its rows. Knows no file format."""

from __future__ import annotations

import datetime
import types
import typing
from decimal import Decimal
from typing import Literal

import msgspec

ColumnType = Literal["text", "integer", "number", "decimal", "boolean", "time", "date"]

_TYPES: dict[object, ColumnType] = {
    str: "text",
    int: "integer",
    float: "number",
    Decimal: "decimal",
    bool: "boolean",
    datetime.datetime: "time",
    datetime.date: "date",
}


class Column(msgspec.Struct, frozen=True):
    """A column of an exported table."""

    name: str
    type: ColumnType
    is_nullable: bool


def columns_of(row: type[msgspec.Struct]) -> tuple[Column, ...]:
    """Return the columns of a struct in the order of its fields, which is the order in every file."""
    hints = typing.get_type_hints(row)
    return tuple(_column(field.encode_name, hints[field.name]) for field in msgspec.structs.fields(row))


def _column(name: str, hint: object) -> Column:
    if isinstance(hint, types.UnionType):
        (inner,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
        return Column(name, _type(inner), True)
    return Column(name, _type(hint), False)


def _type(hint: object) -> ColumnType:
    if typing.get_origin(hint) is Literal:
        return "text"
    return _TYPES[hint]
