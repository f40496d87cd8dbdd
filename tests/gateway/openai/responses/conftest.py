"""The official client, and a client that reads the bytes on the wire."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.gateway.conftest import House
from tests.patience import PATIENCE_S


@pytest.fixture
def client(house: House) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{house.url}/v1", api_key=house.acme.key, _strict_response_validation=True, max_retries=0
    ) as client:
        yield client


@pytest.fixture
def http(house: House) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {house.acme.key}"}
    with httpx.Client(base_url=house.url, headers=headers, timeout=PATIENCE_S) as http:
        yield http
