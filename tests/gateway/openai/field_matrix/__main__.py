"""`python -m tests.gateway.openai.field_matrix` writes the page."""

from __future__ import annotations

from pathlib import Path

from tests.gateway.openai.field_matrix import FIELDS
from tests.gateway.openai.field_matrix.table import as_markdown

Path("tests/conformance/fields.md").write_text(as_markdown(FIELDS))
