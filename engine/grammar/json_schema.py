"""The enforced part of JSON Schema draft 2020-12: everything a schema asserts, or the schema is refused by name.

llguidance refuses most of the schemas it can't enforce. This module refuses the rest before it gets there (keywords
that it reads by an older draft, numbers it would round, characters it would drop, patterns in another dialect,
references that leave the schema), and takes out parts that assert nothing. Unknown keywords assert nothing, as the
specification has it. Nothing here knows tokens.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from engine.grammar.limits import MAX_OPTIONAL_PROPERTIES

OPTIONS = {
    # White space is one space, or a new line with its indentation: readable JSON, and no room for whitespace without
    # end.
    "whitespace_pattern": r"[ ]|\n[ \t]{0,24}",
    # Without \uXXXX: spelt "\u0061", a property "a" would pass for an additional one. What can be spelt in no other
    # way llguidance would drop without a word: see UNSPELLABLE.
    "json_allowed_escapes": 'nrbtf\\"',
    "lenient": False,
    "coerce_one_of": False,
}
DIALECTS = re.compile(r"https?://json-schema\.org/draft(-0[67]|/2019-09|/2020-12)/schema#?")
NOT_ENFORCED = frozenset(
    (
        *("not", "if", "dependentRequired", "dependentSchemas", "dependencies", "propertyNames", "contains"),
        *("uniqueItems", "unevaluatedItems", "unevaluatedProperties", "x-guidance"),
        *("$dynamicRef", "$recursiveRef", "$recursiveAnchor"),
    )
)
LISTS_OF_SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems")
MAPS_OF_SCHEMAS = ("properties", "patternProperties")
SCHEMAS = ("items", "additionalProperties")
IN_PLACE = frozenset(("allOf", "anyOf", "oneOf", "not", "if", "$ref", "$dynamicRef", "dependentSchemas", "contains"))
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
LITERALS = ("const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
LARGEST_EXACT = 2**53  # llguidance computes in doubles
# Operators inside [...] that this regex dialect has and ECMA 262 has not: nested classes, &&, --, ~~.
CLASS_OPERATORS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*?(?:(?<!\\)\[|&&|--|~~)", re.DOTALL)


UNSPELLABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
UNSPELLABLE_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\(?:[av]|[xu]\{|x[01]|x7[fF]|u00[01]|u007[fF])")


class Unenforceable(ValueError):
    """The error for a grammar that can't be enforced; the message names the part.

    label: the client's name of the part at fault, if parts have any.
    """

    def __init__(self, message: str, label: str = "") -> None:
        super().__init__(message)
        self.label = label


def parse_schema(text: str) -> dict[str, Any]:
    """Return the schema with this package's options, ready for llguidance.

    Raises Unenforceable: when a keyword cannot be enforced; the error has the keyword and its place.
    Raises RecursionError: when the schema is nested too deeply.
    """
    try:
        schema = json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise Unenforceable(f"not JSON: {error}") from None
    return prepare_schema(schema)


def prepare_schema(schema: Any) -> dict[str, Any]:
    """Prepare a schema that is decoded already, as `parse_schema` does; the given object may be changed."""
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise Unenforceable("the schema must be an object or true: false allows nothing")
    # Drafts 6 to 2019-09 are read as 2020-12; what that reads differently is refused where it stands.
    dialect = schema.pop("$schema", None)
    if dialect is not None and not (isinstance(dialect, str) and DIALECTS.fullmatch(dialect)):
        raise Unenforceable(f"$schema {_shortened(dialect)} is not supported: schemas are read as draft 2020-12")
    _visit(schema)
    return schema | {"x-guidance": OPTIONS}


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _visit(root: dict[str, Any]) -> None:
    """Simplify and check, in place, every schema that can be reached from the root, through references too."""
    waiting: list[tuple[str, Any]] = [("#", root)]
    referred: set[str] = set()
    while waiting:
        where, schema = waiting.pop()
        if isinstance(schema, bool):
            continue
        if not isinstance(schema, dict):
            raise Unenforceable(f"{where}: a schema must be an object, true or false")
        _simplify(schema)
        _check(where, schema)
        waiting += subschemas(where, schema)
        if "$ref" in schema:
            target = resolve(where, schema["$ref"], root)
            if schema["$ref"] not in referred:
                referred.add(schema["$ref"])
                waiting.append((schema["$ref"], target))


def _simplify(schema: dict[str, Any]) -> None:
    """Remove keywords of a schema that assert nothing, and replace keywords by simpler ones of the same meaning."""
    schema.pop("$dynamicAnchor", None)  # asserts nothing without the $dynamicRef that is refused
    schema.pop("additionalItems", None)  # gone from draft 2020-12
    if schema.get("uniqueItems") is False:
        del schema["uniqueItems"]
    if "contains" not in schema:
        schema.pop("minContains", None)
        schema.pop("maxContains", None)
    if "if" not in schema or not schema.keys() & {"then", "else"}:
        for keyword in ("if", "then", "else"):
            schema.pop(keyword, None)
    for unevaluated, adjacent in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
        if schema.get(unevaluated) is True or (unevaluated in schema and adjacent in schema):
            del schema[unevaluated]  # everything is allowed, or evaluated
        elif unevaluated in schema and not schema.keys() & IN_PLACE:
            schema[adjacent] = schema.pop(unevaluated)
    for keyword in COUNTS:
        count = schema.get(keyword)
        if isinstance(count, float) and count.is_integer():
            schema[keyword] = int(count)


def _check(where: str, schema: dict[str, Any]) -> None:
    for keyword in schema:
        if keyword in NOT_ENFORCED:
            raise Unenforceable(f"{where}: {keyword!r} can't be enforced")
        if where != "#" and keyword in ("$id", "$schema"):
            raise Unenforceable(f"{where}: {keyword!r} is supported at the root only")
        for leaf in _leaves(schema[keyword]) if keyword in LITERALS else ():
            if not _is_exact(leaf):
                raise Unenforceable(f"{where}: {keyword!r} holds a number that a double can't")
            if isinstance(leaf, str) and UNSPELLABLE.search(leaf):
                raise Unenforceable(f"{where}: {keyword!r} holds a control character, which is not supported")
    if schema.get("enum") == []:
        raise Unenforceable(f"{where}: an empty 'enum' allows nothing")
    for pattern in (schema.get("pattern"), *_keys(schema.get("patternProperties"))):
        if isinstance(pattern, str):
            _check_pattern(where, pattern)
    if len(set(_keys(schema.get("properties"))) - set(_names(schema.get("required")))) > MAX_OPTIONAL_PROPERTIES:
        raise Unenforceable(f"{where}: 'properties' has more than {MAX_OPTIONAL_PROPERTIES} that are not in 'required'")
    least = schema.get("minProperties", 0)
    if isinstance(least, int) and least > 1 + len(_keys(schema.get("required"))):
        # Additional names may repeat, and repeated ones count once.
        raise Unenforceable(f"{where}: 'minProperties' can't be enforced beyond the required properties and one more")


def subschemas(where: str, schema: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the schemas that a prepared schema is made of, each with its place. where: the place of the schema."""
    found = [(f"{where}/{keyword}", schema[keyword]) for keyword in SCHEMAS if keyword in schema]
    for keyword in LISTS_OF_SCHEMAS:
        if isinstance(schema.get(keyword), list):
            found += [(f"{where}/{keyword}/{index}", item) for index, item in enumerate(schema[keyword])]
    for keyword in MAPS_OF_SCHEMAS:
        if isinstance(schema.get(keyword), dict):
            found += [(f"{where}/{keyword}/{name}", item) for name, item in schema[keyword].items()]
    return found


def resolve(where: str, reference: object, root: dict[str, Any]) -> Any:
    """Return the target of a JSON pointer within a root schema (RFC 6901, as a URI fragment).

    where: the place of the reference, for the error.

    Raises Unenforceable: when the reference leads out of the root schema, or to nothing.
    """
    name = f"{where}: $ref {_shortened(reference)}"
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise Unenforceable(f"{name} is not supported; use #/$defs/name")
    target: Any = root
    for part in reference.split("/")[1:]:
        segment = unquote(part).replace("~1", "/").replace("~0", "~")
        if target is not root and isinstance(target, dict) and isinstance(target.get("$id"), str):
            raise Unenforceable(f"{name} crosses an $id, which is not supported")
        if isinstance(target, list) and segment.isdecimal() and int(segment) < len(target):
            target = target[int(segment)]
        elif isinstance(target, dict) and segment in target:
            target = target[segment]
        else:
            raise Unenforceable(f"{name} points to nothing")
    return target


def _check_pattern(where: str, pattern: str) -> None:
    if CLASS_OPERATORS.search(pattern):
        raise Unenforceable(
            f"{where}: 'pattern' {_shortened(pattern)} has operators inside [...]; escape [, &, - and ~"
        )
    if UNSPELLABLE.search(pattern) or UNSPELLABLE_ESCAPE.search(pattern):
        raise Unenforceable(
            f"{where}: 'pattern' {_shortened(pattern)} names a control character, which is not supported"
        )


def _leaves(value: object) -> Iterator[object]:
    """Yield the scalars in a JSON value."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
    else:
        yield value


def _is_exact(value: object) -> bool:
    """Tell whether a value is exact: not a number that is not finite, nor an integer that a double would round."""
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or abs(value) <= LARGEST_EXACT


def _keys(value: object) -> list[Any]:
    return list(value) if isinstance(value, dict | list) else []


def _names(value: object) -> list[str]:
    return [name for name in _keys(value) if isinstance(name, str)]


def _shortened(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
