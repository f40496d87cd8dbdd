"""Who dies, and what is billed then: each line of the promise, over real processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.conservation import Row, check_conservation, execute, ledger
from tests.faults.site import Site
from tests.faults.watcher import Seen, Watcher

LONG = 400


@pytest.fixture(scope="module")
def site(open_folder: Path) -> Iterator[Site]:
    """One for all: at the end everything that any client saw must add up."""
    folder = open_folder / "billed"
    folder.mkdir(mode=0o711)
    site = Site(folder)
    try:
        site.start()
        yield site
        site.settle()
        check_conservation(site)
    finally:
        site.close()


def watch(site: Site, **options: int) -> Seen:
    """One short request to its end."""
    return asyncio.run(Watcher(site, 0, max_tokens=3).run(**options))


def interrupted(site: Site, break_it: Callable[[], None], num_clients: int = 3) -> list[Seen]:
    """What clients saw of long streams in whose midst something was broken."""

    async def stream() -> list[Seen]:
        watchers = [Watcher(site, 0, max_tokens=LONG) for _ in range(num_clients)]
        running = [asyncio.create_task(watcher.run()) for watcher in watchers]
        for number, watcher in enumerate(watchers):
            await watcher.saw(5 + 3 * number)
        await asyncio.to_thread(break_it)
        return list(await asyncio.gather(*running))

    return asyncio.run(stream())


def billed(site: Site, seen: list[Seen], *reasons: str) -> list[Row]:
    """The rows of these, once they have ended for such reasons."""

    def rows() -> list[Row]:
        by_request = ledger(site)
        return [by_request[client.request_id] for client in seen if client.request_id in by_request]

    until(lambda: len(rows()) == len(seen) and {row.finish_reason for row in rows()} <= set(reasons))
    return rows()


def until(holds: Callable[[], bool], within_s: float = 15.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_a_client_that_leaves_pays_what_the_engine_counted_at_the_abort(site: Site) -> None:
    seen = asyncio.run(Watcher(site, 0, max_tokens=LONG).run(leave_after=7))
    (row,) = billed(site, [seen], "abort")
    assert row.completion_tokens == site.produced()[row.request_id] >= seen.num_tokens


def test_a_killed_engine_costs_what_was_on_its_way_to_clients(site: Site) -> None:
    seen = interrupted(site, site.engine.kill)
    assert all(client.has_failed and not client.has_ended for client in seen)
    for row, client in zip(billed(site, seen, "error"), seen, strict=True):
        assert client.num_tokens <= row.completion_tokens <= site.produced()[row.request_id]
    site.engine.start()
    site.gateways[0].wait_ready()


def test_a_killed_gateways_requests_cost_what_their_engine_tells_the_next_one(site: Site) -> None:
    seen = interrupted(site, site.gateways[0].kill)
    site.gateways[0].start()
    site.gateways[0].wait_ready()
    rows = billed(site, seen, "abort")
    assert [row.completion_tokens for row in rows] == [site.produced()[row.request_id] for row in rows]


def test_with_the_engine_gone_too_they_cost_what_the_journal_says(site: Site) -> None:
    def both() -> None:
        site.gateways[0].kill()
        site.engine.kill()

    seen = interrupted(site, both)
    site.engine.start()
    site.gateways[0].start()
    site.gateways[0].wait_ready()
    for row, client in zip(billed(site, seen, "error"), seen, strict=True):
        assert 5 <= client.num_tokens <= row.completion_tokens <= site.produced()[row.request_id]


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_a_database_that_goes_and_comes_costs_nothing(site: Site, how: str) -> None:
    seen = interrupted(site, getattr(site.postgres, how))
    assert all(client.has_ended for client in seen)
    assert [row.completion_tokens for row in billed(site, seen, "length")] == [LONG] * 3


def test_a_gateway_that_stops_without_its_database_leaves_the_rest_to_the_next(site: Site) -> None:
    codes: list[int] = []
    with site.postgres.frozen():
        seen = interrupted(site, lambda: codes.append(site.gateways[0].terminate()))
    assert codes == [0]
    assert all(client.has_ended for client in seen), "a stop lets streams finish"
    site.gateways[0].start()
    site.gateways[0].wait_ready()
    assert [row.completion_tokens for row in billed(site, seen, "length")] == [LONG] * 3


def test_without_its_folder_what_the_engine_holds_is_billed_and_the_rest_is_counted(site: Site) -> None:
    """One request has ended while the database is frozen, and its engine may forget it; two are running."""
    gateway = site.gateways[0]
    lost: list[Seen] = []

    def lose() -> None:
        with site.postgres.frozen():
            lost.append(watch(site))
            until(lambda: gateway.metric("lorikeet_usage_unacknowledged") == 0)
            gateway.kill()
        site.lose_journals()

    seen = interrupted(site, lose, num_clients=2)
    assert lost[0].has_ended
    execute(site, "UPDATE journals SET heard_at = heard_at - interval '1 hour'")
    gateway.start()
    gateway.wait_ready()
    billed(site, seen, "abort")
    until(lambda: gateway.metric("lorikeet_unbilled_requests") == 1)
    assert lost[0].request_id not in ledger(site)
    site.lost.add(lost[0].request_id)
