"""The matrix as a table for readers. `tests/conformance/fields.md` is what `as_markdown` returns."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tests.gateway.openai.field_matrix.cases import BASES, Case, Field

MAX_CHARS = 32
MANY = 8
HEAD = """# Fields

Every field of a request and what becomes of each kind of value, as `tests/gateway/openai/test_field_matrix.py` holds a
running gateway to it; `tests/gateway/openai/field_matrix` is what this page is made of.

- **honoured**: it changes what the engine is asked, or what the reply shows.
- **accepted**: by definition it changes neither, or it says what holds anyway.
- **refused**: status 400 (404 for an unknown model) and the field's path in `param`.

Fields that are not here are refused by name.
"""


def as_markdown(fields: Iterable[Field]) -> str:
    """Return the matrix as Markdown, a table for each endpoint."""
    parts, fields = [HEAD], list(fields)
    for endpoint in BASES:
        rows = "\n".join(_row(field) for field in fields if field.endpoint == endpoint)
        head = "| field | valid | edge | invalid | null | wrong type | note |\n|---|---|---|---|---|---|---|"
        parts.append(f"## POST {endpoint}\n\n{head}\n{rows}\n")
    return "\n".join(parts)


def _row(field: Field) -> str:
    cells = [_cell(cases) for cases in field.cases.values()]
    return f"| `{field.name}` | {' | '.join(cells)} | {field.note} |"


def _cell(cases: tuple[Case, ...]) -> str:
    """Return the content of a table's cell: the values of cases, those with the same answer together."""
    by_outcome: dict[str, list[str]] = {}
    for case in cases:
        by_outcome.setdefault(case.outcome, []).append(_value_cell(case.value))
    return "; ".join(f"{', '.join(dict.fromkeys(values))} {outcome}" for outcome, values in by_outcome.items())


def _value_cell(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    many = ""
    if len(text) > MAX_CHARS:
        text = f"{text[: MAX_CHARS - 3]}..."
        if len(value) > MANY:
            many = f" ({len(value):,} {'characters' if isinstance(value, str) else 'elements'})"
    return f"`{text.replace('|', chr(92) + '|')}`{many}"
