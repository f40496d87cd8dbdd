"""Regular expressions whose time is linear in the text, whoever wrote them: RE2, which comes with pyarrow.

Compiling one may take a tenth of a second, and searching a megabyte seconds: both are for threads, in which RE2 leaves
Python to others.
"""

from __future__ import annotations

from collections.abc import Sequence


def pattern_fault(pattern: str) -> str | None:
    """Return the fault of a regular expression in RE2's syntax; None for a good one."""
    try:
        _search(pattern, [""])
    except ValueError as error:
        return str(error).removeprefix("Invalid regular expression: ")
    return None


def all_match(pattern: str, texts: Sequence[str]) -> bool:
    """Tell whether each text contains a match of a valid regular expression, also one that spans lines.

    The expression is compiled once, which may take as long as the search in a text of some kilobytes.
    """
    try:
        return all(_search(pattern, list(texts)))
    except UnicodeEncodeError:  # half a character
        return False


def _search(pattern: str, texts: list[str]) -> list[bool]:
    import pyarrow as pa  # takes a while to load, and few gateways need it
    import pyarrow.compute as pc

    found: list[bool] = pc.match_substring_regex(pa.array(texts, pa.large_string()), pattern=pattern).to_pylist()
    return found
