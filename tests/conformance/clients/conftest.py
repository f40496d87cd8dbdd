"""Fixtures for tests with outside clients: the server's address, its models and keys, from environment variables."""

from __future__ import annotations

import os
from typing import NamedTuple

import pytest


class Place(NamedTuple):
    """The server that clients use: models and keys."""

    url: str
    key: str
    narrow_key: str
    """A key with one request at a time."""
    broke_key: str
    """A key with a spent budget."""
    model: str
    """The model to ask."""
    base: str
    """The base model."""


@pytest.fixture(scope="session")
def place() -> Place:
    return Place(
        url=os.environ["OPENAI_BASE_URL"],
        key=os.environ["OPENAI_API_KEY"],
        narrow_key=os.environ["CONFORMANCE_NARROW_KEY"],
        broke_key=os.environ["CONFORMANCE_BROKE_KEY"],
        model=os.environ["CONFORMANCE_MODEL"],
        base=os.environ["CONFORMANCE_BASE"],
    )
