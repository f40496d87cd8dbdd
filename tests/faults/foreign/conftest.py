"""One gateway for the tests of a file, with servers of other makers that each test makes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.faults.foreign.site import Desk, ForeignSite, running_site


@pytest.fixture(scope="module")
def site(module_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForeignSite]:
    with running_site(module_dsn, tmp_path_factory.mktemp("foreign")) as site:
        yield site


@pytest.fixture
async def desk(site: ForeignSite) -> AsyncIterator[Desk]:
    async with site.desk() as desk:
        yield desk
