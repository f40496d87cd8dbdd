"""Random schemas of tools, by a seed: each of an object that can be written within a hundred tokens or so."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

WORDS = (
    "city",
    "date",
    "unit",
    "limit",
    "user_id",
    "tags",
    "query",
    "is_new",
    "price",
    "to",
    "notes",
    "x-ray",
    "größe",
)
LEAVES: tuple[Callable[[random.Random], Schema], ...] = (
    lambda rng: {"type": "string", "maxLength": rng.randint(1, 12)},
    lambda rng: {"type": "string", "minLength": 2, "maxLength": 8, "description": "A few letters."},
    lambda rng: {"enum": rng.sample(["red", "grün", 'a "b"', 7, None, True, "c\\d"], rng.randint(1, 4))},
    lambda rng: {"const": rng.choice(["fixed", 0, False])},
    lambda rng: {"type": "string", "pattern": rng.choice(["^[A-Z]{2}-[0-9]{3}$", "^(on|off)$", "^[a-f0-9]{6}$"])},
    lambda rng: {"type": "string", "format": rng.choice(["date", "uuid", "ipv4", "time"])},
    lambda rng: {"type": "integer", "minimum": rng.randint(-9, 0), "maximum": rng.randint(1, 500)},
    lambda rng: {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 9},
    lambda rng: {"type": "boolean"},
    lambda rng: {"type": ["string", "null"], "maxLength": 5},
    lambda rng: {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "boolean"}]},
)


def tool_schema(seed: int) -> Schema:
    rng = random.Random(seed)
    schema = _object(rng, depth=0)
    if rng.random() < 0.2:
        schema["$defs"] = {"shared": _leaf(rng)}
        schema["properties"]["shared"] = {"$ref": "#/$defs/shared"}
    return schema


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(WORDS, rng.randint(0 if depth == 0 else 1, 4))
    return {
        "type": "object",
        "properties": {name: _value(rng, depth + 1) for name in names},
        "required": rng.sample(names, rng.randint(0, len(names))),
        "additionalProperties": False,
    }


def _value(rng: random.Random, depth: int) -> Schema:
    kind = rng.random()
    if kind < 0.15 and depth < 3:
        return _object(rng, depth)
    if kind < 0.3:
        return {"type": "array", "items": _leaf(rng), "minItems": rng.randint(0, 1), "maxItems": 3}
    return _leaf(rng)


def _leaf(rng: random.Random) -> Schema:
    return rng.choice(LEAVES)(rng)
