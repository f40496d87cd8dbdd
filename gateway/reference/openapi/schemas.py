"""JSON schemas of the structs that travel, as components that refer to each other.

The schema that msgspec makes of a struct is right for requests. A schema of replies says more: a field with a default
is there all the same, so that clients may count on it, unless its struct leaves defaults out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import inspect as shapes

from gateway.reference.openapi.field_docs import field_docs

SCHEMAS = "#/components/schemas/{name}"

JsonSchema = dict[str, Any]


def schemas_of(kinds: Iterable[Any]) -> tuple[dict[Any, JsonSchema], dict[str, JsonSchema]]:
    """Return each type's schema, and the components to which the schemas refer, by name."""
    wanted = list(dict.fromkeys(kinds))
    schemas, components = msgspec.json.schema_components(wanted, ref_template=SCHEMAS)
    structs = _structs(shapes.multi_type_info(wanted))
    sparse = {each.__name__ for each in structs if _is_sparse(each)}
    docs = {_identity(each.__name__, _names(each)): field_docs(each) for each in structs}
    for schema in components.values():
        title = schema.get("title", "").partition("[")[0]
        for name, text in docs.get(_identity(title, schema.get("properties", ())), {}).items():
            schema["properties"][name]["description"] = text
        if schema.get("type") == "object" and schema.get("title") not in sparse:
            given = [name for name, each in schema["properties"].items() if "default" in each]
            schema["required"] = [name for name in schema["properties"] if name in {*schema["required"], *given}]
    return dict(zip(wanted, schemas, strict=True)), components


def _identity(name: str, fields: Iterable[str]) -> tuple[str, frozenset[str]]:
    """Return the key that a component and its struct share; two structs of one name have different keys."""
    return name, frozenset(fields)


def _names(struct: type[msgspec.Struct]) -> Iterator[str]:
    return (each.encode_name for each in msgspec.structs.fields(struct))


def _is_sparse(struct: type[msgspec.Struct]) -> bool:
    """Tell whether a field with a default may be missing, because a client may leave it out or the server does."""
    config = struct.__struct_config__
    return config.forbid_unknown_fields or config.omit_defaults


def _structs(value: Any) -> set[type[msgspec.Struct]]:
    """Return every struct class within a tree of `msgspec.inspect`'s descriptions, which are structs themselves."""
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
