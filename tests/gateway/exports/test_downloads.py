"""Exports over the admin API: to whom, in what shape, and what a client gets when an export fails on the way."""

from __future__ import annotations

import asyncio
import io
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from gateway.admin.billing.downloads import DEADLINE_S, Downloads
from gateway.db.pool import UNAVAILABLE
from gateway.domain.errors import Overloaded
from tests.gateway.admin_server import AdminServer, serve_admin
from tests.gateway.exports.ledger import BEFORE, MONTH, Books
from tests.gateway.exports.reading import export

QUERY = {"kind": "usage", "period": BEFORE, "format": "csv"}


@pytest.fixture
async def server(books: Books, tmp_path: Path) -> AsyncIterator[AdminServer]:
    async with serve_admin(books.database, tmp_path) as server:
        yield server


async def test_an_operator_downloads_the_organizations_export(server: AdminServer, books: Books) -> None:
    async with server.client(server.operator_key) as operator:
        reply = await operator.get("/exports", params=QUERY)
    assert reply.status_code == 200 and reply.headers["content-type"] == "application/zip"
    assert reply.headers["content-disposition"] == f'attachment; filename="usage-{BEFORE}.csv.zip"'
    with zipfile.ZipFile(io.BytesIO(reply.content)) as archive:
        assert archive.read(f"usage-{BEFORE}.csv") == (await export(books, "usage", "csv", BEFORE))[0]


async def test_a_project_has_an_export_of_its_own(server: AdminServer, books: Books) -> None:
    async with server.client(server.operator_key) as operator:
        reply = await operator.get(f"/projects/{books.acme}/exports", params=QUERY)
        unknown = await operator.get("/projects/proj_unknown/exports", params=QUERY)
    with zipfile.ZipFile(io.BytesIO(reply.content)) as archive:
        name = archive.namelist()[0]
        assert name == f"usage-{BEFORE}-{books.acme}.csv"
        assert books.globex.encode() not in archive.read(name)
    assert unknown.status_code == 404


async def test_a_wrong_query_is_refused_by_its_parameter(server: AdminServer) -> None:
    async with server.client(server.operator_key) as operator:
        for query, param in [
            ({"kind": "usage"}, "period"),
            ({"period": MONTH}, "kind"),
            (QUERY | {"kind": "nothing"}, "kind"),
            (QUERY | {"format": "focus"}, "format"),
            (QUERY | {"period": "yesterday"}, "period"),
            (QUERY | {"columns": "all"}, "columns"),
        ]:
            reply = await operator.get("/exports", params=query)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), query


async def test_a_period_that_never_was_is_not_found(server: AdminServer) -> None:
    async with server.client(server.operator_key) as operator:
        for period in ("2025-08", "2099-12"):
            reply = await operator.get("/exports", params=QUERY | {"period": period})
            assert (reply.status_code, reply.json()["error"]["param"]) == (404, "period")


async def test_a_slow_reader_holds_up_no_other_request(server: AdminServer, books: Books) -> None:
    downloads = server.services.downloads
    async with server.client(server.operator_key) as operator:
        with downloads.reserve_place(books.acme):
            reply = await operator.get(f"/projects/{books.acme}/exports", params=QUERY)
            assert (reply.status_code, reply.headers["retry-after"]) == (503, "10")
            assert (await operator.get(f"/projects/{books.globex}/exports", params=QUERY)).status_code == 200
        assert (await operator.get(f"/projects/{books.acme}/exports", params=QUERY)).status_code == 200


def test_a_place_is_free_again_after_the_deadline_whoever_still_reads() -> None:
    now = 0.0
    downloads = Downloads(max_running=2, clock=lambda: now)
    with downloads.reserve_place("a"), downloads.reserve_place("b"):
        with pytest.raises(Overloaded, match="as many exports at once as it can"), downloads.reserve_place("c"):
            pass
        now = DEADLINE_S
        with downloads.reserve_place("a"):
            pass
        with downloads.reserve_place("c"), downloads.reserve_place("d"):
            pass


async def test_a_snapshot_ends_at_its_deadline_though_nothing_is_asked_of_it(books: Books) -> None:
    with pytest.raises(UNAVAILABLE):
        async with books.database.snapshot(deadline_s=0.05) as conn:
            await asyncio.sleep(0.1)
            await conn.fetchval("SELECT 1")


async def test_a_client_knows_when_the_rest_does_not_come(server: AdminServer, books: Books) -> None:
    """The database goes away in the middle: the connection ends without the reply's end."""
    query = {"kind": "invoice", "period": BEFORE}
    async with server.client(server.operator_key) as operator:
        async with books.database.transaction() as conn:
            await conn.execute("LOCK TABLE credit_draws IN ACCESS EXCLUSIVE MODE")  # the last table of an invoice
            with pytest.raises(httpx.RemoteProtocolError):
                async with operator.stream("GET", "/exports", params=query) as reply:
                    assert reply.status_code == 200
                    await conn.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE application_name = 'lorikeet-export' AND datname = current_database()"
                    )
                    await reply.aread()
        assert (await operator.get("/exports", params=query)).status_code == 200, "its place is free again"
