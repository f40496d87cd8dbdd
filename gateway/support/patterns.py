"""Regular expressions whose time is linear in the text, whoever wrote them: RE2, which comes with pyarrow."""

from __future__ import annotations

from typing import Any


def pattern_fault(pattern: str) -> str | None:
    """Return the fault of a regular expression in RE2's syntax; None for a good one."""
    try:
        _search(pattern, "")
    except ValueError as error:
        return str(error).removeprefix("Invalid regular expression: ")
    return None


def has_match(pattern: str, text: str) -> bool:
    """Tell whether a text contains a match of a valid regular expression, also one that spans lines."""
    try:
        return bool(_search(pattern, text))
    except UnicodeEncodeError:  # half a character
        return False


def _search(pattern: str, text: str) -> Any:
    import pyarrow as pa  # takes a while to load, and few gateways need it
    import pyarrow.compute as pc

    return pc.match_substring_regex(pa.scalar(text), pattern=pattern).as_py()
