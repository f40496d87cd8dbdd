"""Items of responses and conversations, as commands print them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from gateway.cli.errors import EXIT_OK
from gateway.cli.output import print_result, print_table

if TYPE_CHECKING:
    from gateway.cli.chat.inference import InferenceClient

PAGE = 100
MAX_SHOWN = 80
"""The characters of an item's content that a table shows."""


def add_items_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a command that lists items."""
    parser.add_argument("--limit", type=int, default=PAGE, metavar="N", help=f"most items to list (default: {PAGE})")


def print_items(arguments: argparse.Namespace, client: InferenceClient, path: str) -> int:
    """Print the items at a path, the oldest first."""
    items: list[dict[str, Any]] = []
    while len(items) < arguments.limit:
        after = items[-1]["id"] if items else None
        limit = min(PAGE, arguments.limit - len(items))
        page = client.get(path, order="asc", limit=limit, after=after)
        items += page["data"]
        if not page["has_more"]:
            break
    if arguments.json:
        return print_result(arguments, items, "")
    rows = [(item["id"], item["type"], item.get("role") or item.get("name"), _content(item)) for item in items]
    print_table(("ID", "TYPE", "ROLE", "CONTENT"), rows)
    return EXIT_OK


def text_of(item: dict[str, Any]) -> str:
    """Return the text of an item."""
    content = item.get("content") or item.get("output") or item.get("arguments") or item.get("input") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text") or part.get("refusal") or "" for part in content)


def _content(item: dict[str, Any]) -> str:
    text = " ".join(text_of(item).split())
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
