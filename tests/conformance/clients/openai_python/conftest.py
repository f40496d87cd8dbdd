"""Fixtures: OpenAI's client, which validates every reply against its own types, and the arguments of a minimal
request."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI


@pytest.fixture(scope="session")
def openai(place) -> Iterator[OpenAI]:
    with OpenAI(max_retries=0, _strict_response_validation=True) as client:
        yield client


@pytest.fixture(scope="session")
def lenient(place) -> Iterator[OpenAI]:
    """Give a client without validation, for replies of OpenAI's servers that the client's strict types do not know.

    These are chunks of text completions without a finish reason, no log-probability of a first token, embeddings in
    base64, and stored messages of users.
    """
    with OpenAI(max_retries=0) as client:
        yield client


@pytest.fixture
def ask(place) -> dict[str, object]:
    """Return the arguments of a minimal chat request, whose answer takes the most likely tokens."""
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    return {"model": place.model, "messages": messages, "max_tokens": 4, "temperature": 0}
