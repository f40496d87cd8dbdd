"""The OpenAPI document as a page of HTML. Pure. The templates escape all texts of the document."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from gateway.reference.page.snippets import BASE_URL
from gateway.reference.page.views import failures, groups, schemas

FOLDER = Path(__file__).parent

_ENVIRONMENT = Environment(
    autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=FileSystemLoader(FOLDER)
)


def _prose(text: str) -> Markup:
    """Return the paragraphs of a text as HTML, with `code` between backticks."""
    paragraphs = (" ".join(each.split()) for each in text.split("\n\n") if each.strip())
    escaped = (re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(each))) for each in paragraphs)
    return Markup("").join(Markup(f"<p>{each}</p>") for each in escaped)  # noqa: S704 - each is escaped


_ENVIRONMENT.filters["prose"] = _prose


def page(document: Mapping[str, Any]) -> str:
    """Return the whole page, in which `BASE_URL` stands where the reader's own belongs."""
    components = document["components"]
    return _ENVIRONMENT.get_template("page.html").render(
        info=document["info"],
        base_url=BASE_URL,
        groups=groups(document),
        failures=failures(document),
        headers=components["headers"],
        security=components["securitySchemes"],
        schemas=schemas(document),
    )
