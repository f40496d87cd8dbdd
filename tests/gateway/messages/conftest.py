"""Clients that send the key as Anthropic's clients do."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.gateway.conftest import House
from tests.patience import PATIENCE_S


@pytest.fixture
def http(house: House) -> Iterator[httpx.Client]:
    headers = {"x-api-key": house.acme.key, "anthropic-version": "2023-06-01"}
    with httpx.Client(base_url=house.url, headers=headers, timeout=PATIENCE_S) as http:
        yield http
