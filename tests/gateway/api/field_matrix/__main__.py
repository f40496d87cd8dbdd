"""`python -m tests.gateway.api.field_matrix` writes the page."""

from __future__ import annotations

from pathlib import Path

from tests.gateway.api.field_matrix import FIELDS
from tests.gateway.api.field_matrix.table import as_markdown

Path("tests/conformance/fields.md").write_text(as_markdown(FIELDS))
