"""Fixtures for tests of batches: a tenant of the test's own in the house, its client, and files of requests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest

from tests.gateway.batches.jobs import Jobs
from tests.gateway.conftest import House
from tests.gateway.content.conftest import client as client
from tests.gateway.content.conftest import operator as operator
from tests.gateway.content.conftest import stranger as stranger
from tests.gateway.content.conftest import tables as tables
from tests.gateway.content.conftest import tenant as tenant
from tests.gateway.limits.fleet import Key


@pytest.fixture
async def jobs(house: House, tenant: Key) -> AsyncIterator[Jobs]:
    async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key=tenant.secret, max_retries=0) as client:
        yield Jobs(client)
