"""The source of a pool's base model, as an operator writes it. Knows the forms alone: agents look for the files."""

from __future__ import annotations

import re

MAX_SOURCE_CHARS = 1024
DEMO = frozenset({"demo", "demo-random"})
"""Models that need no download: a trained one, and one with random weights."""

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


def check_model_source(source: str) -> None:
    """Check the form of a text that names a base model.

    A path must be absolute, since the agents of several hosts read it, each from a folder of its own.

    Raises ValueError: when a text names no model; the message is the reason.
    """
    if len(source) > MAX_SOURCE_CHARS:
        raise ValueError(f"it has more than {MAX_SOURCE_CHARS} characters")
    if not source.isprintable():
        raise ValueError("it holds control characters")
    is_path = source.startswith("/") and source.strip("/ ") != ""
    if not (source in DEMO or is_path or _HUB_ID.fullmatch(source)):
        raise ValueError(
            "expected 'demo', 'demo-random', the absolute path of a folder or of a .gguf file, or a repository id of "
            "the Hugging Face hub such as 'Qwen/Qwen3-0.6B'"
        )
