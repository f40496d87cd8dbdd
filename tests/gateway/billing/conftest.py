"""One tenant's books in a database of their own."""

from __future__ import annotations

import pytest

from gateway.db.pool import Database
from tests.gateway.billing.books import Books, open_books


@pytest.fixture
async def books(database: Database) -> Books:
    return await open_books(database)
