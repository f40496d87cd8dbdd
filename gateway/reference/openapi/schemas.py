"""JSON schemas of the structs that travel, as components that refer to each other.

What msgspec makes of a struct is right for what is read. What is sent says more: a field with a default is there all
the same, so that clients may count on it, unless its struct leaves defaults out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import inspect as shapes

SCHEMAS = "#/components/schemas/{name}"

JsonSchema = dict[str, Any]


def schemas_of(kinds: Iterable[Any]) -> tuple[dict[Any, JsonSchema], dict[str, JsonSchema]]:
    """(each type's schema, the components that they refer to by name)."""
    wanted = list(dict.fromkeys(kinds))
    schemas, components = msgspec.json.schema_components(wanted, ref_template=SCHEMAS)
    sparse = {each.__name__ for each in _structs(shapes.multi_type_info(wanted)) if _is_sparse(each)}
    for schema in components.values():
        if schema.get("type") == "object" and schema.get("title") not in sparse:
            given = [name for name, each in schema["properties"].items() if "default" in each]
            schema["required"] = [name for name in schema["properties"] if name in {*schema["required"], *given}]
    return dict(zip(wanted, schemas, strict=True)), components


def _is_sparse(struct: type[msgspec.Struct]) -> bool:
    """Whether a field with a default may be missing: a client may leave it out, or the server does."""
    config = struct.__struct_config__
    return config.forbid_unknown_fields or config.omit_defaults


def _structs(value: Any) -> set[type[msgspec.Struct]]:
    """Every struct class within a tree of `msgspec.inspect`'s descriptions, which are structs themselves."""
    found: set[type[msgspec.Struct]] = set()
    left, seen = [value], set()
    while left:
        each = left.pop()
        if isinstance(each, (tuple, list)):
            left.extend(each)
        elif isinstance(each, msgspec.Struct) and id(each) not in seen:
            seen.add(id(each))
            if isinstance(each, shapes.StructType):
                found.add(getattr(each.cls, "__origin__", each.cls))
            left.extend(getattr(each, name) for name in each.__struct_fields__)
    return found
