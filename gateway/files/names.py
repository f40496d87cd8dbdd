"""Checks the names that people give to files, and whether a file can be what it is for."""

from __future__ import annotations

import re

from gateway.domain.batches.line import MAX_FILE_BYTES
from gateway.domain.errors import BodyTooLarge, InvalidRequest

MAX_NAME_CHARS = 255


def checked_name(name: str, purpose: str, param: str) -> str:
    """Return the checked name of a file: its last part, as browsers may send a whole path.

    Raises InvalidRequest: when the name is no file name, or not one that a batch's input may have.
    """
    name = re.split(r"[/\\]", name)[-1]
    if not name or len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise InvalidRequest(
            f"Invalid value for '{param}': the file needs a name of 1 to {MAX_NAME_CHARS} characters.",
            param=param,
            code="invalid_value",
        )
    if purpose == "batch" and not name.lower().endswith(".jsonl"):
        raise InvalidRequest(
            "Invalid file format for Batch API. Must be .jsonl", param=param, code="invalid_file_format"
        )
    return name


def check_size(num_bytes: int, purpose: str, param: str) -> None:
    """Check that a file is not larger than its purpose allows.

    Raises BodyTooLarge: when the file is meant for a batch, and larger than the input of a batch may be.
    """
    if purpose == "batch" and num_bytes > MAX_FILE_BYTES:
        raise BodyTooLarge(
            f"A file of the purpose 'batch' has {MAX_FILE_BYTES} bytes at most, and this one has {num_bytes}.",
            param=param,
        )
