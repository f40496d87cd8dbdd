"""Usage that is billed after each kind of death: each line of the promise, over real processes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import msgspec
import pytest

from gateway.metering.folder import segments_in
from gateway.metering.format import Progressed, read_frames
from tests.faults.conservation import Row, check_conservation, execute, ledger, num_open
from tests.faults.processes import Gateway
from tests.faults.site import ENDLESS, Site
from tests.faults.watcher import Received, Watcher
from tests.gateway.limits.fleet import make_key
from tests.installation.waiting import wait_until as until
from tests.patience import PATIENCE_S

LENGTH = 80
"""The number of tokens of a stream that ends by itself."""


@pytest.fixture(scope="module")
def site(open_folder: Path) -> Iterator[Site]:
    """Give one site for all tests; at the end everything that any client saw must add up."""
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


def interrupted(
    site: Site,
    break_it: Callable[[list[Watcher]], object],
    lengths: Sequence[int] = (ENDLESS,) * 3,
    gateways: Sequence[int] = (0,) * 3,
    secret: str | None = None,
) -> list[Received]:
    """Start a stream for each length, cause a fault once all have begun, and return the received parts.

    break_it: breaks something; is called with the clients. lengths, gateways: the most tokens of each stream, and the
    gateway that serves it. secret: the secret of an API key; None for the site's own key.
    """
    watchers = [
        Watcher(site, gateway, secret=secret, max_tokens=length)
        for gateway, length in zip(gateways, lengths, strict=True)
    ]
    all_began = threading.Event()

    async def stream() -> list[Received]:
        running = [asyncio.create_task(watcher.run()) for watcher in watchers]
        try:
            for number, watcher in enumerate(watchers):
                await watcher.until_seen(5 + 3 * number)
        finally:
            all_began.set()
        return list(await asyncio.gather(*running))

    # The clients have a thread of their own: a database ends with the thread that started it.
    with ThreadPoolExecutor(1) as thread:
        seen = thread.submit(asyncio.run, stream())
        assert all_began.wait(PATIENCE_S)
        if seen.done():  # some never did
            seen.result()
        break_it(watchers)
        return seen.result()


@contextmanager
def another_gateway(site: Site, **changes: int) -> Iterator[Gateway]:
    """Give a second gateway of the site with other settings; stop it in order when the context is left."""
    gateway = Gateway(msgspec.structs.replace(site.settings, **changes), site.postgres.dsn, 1)
    site.gateways.append(gateway)
    try:
        gateway.start()
        gateway.wait_ready()
        yield gateway
        assert gateway.terminate() == 0
    finally:
        site.gateways.remove(gateway)
        gateway.close()


def unlimited_key(site: Site) -> str:
    """Return the secret of a new tenant without limits, since limits need the database, too."""
    return asyncio.run(make_key(site.postgres.dsn, f"unlimited {len(site.seen)}")).secret


@contextmanager
def database_away(
    site: Site, gateway: int, secret: str, go: Callable[[], AbstractContextManager[object]]
) -> Iterator[None]:
    """Make the database unavailable until the context is left, once the gateway has cached the key.

    The gateway may learn of the key's creation after the first request, and forgets the key then. go: takes the
    database away.
    """

    def is_served() -> bool:
        return asyncio.run(Watcher(site, gateway, secret=secret, max_tokens=1).run()).status == 200

    while True:
        until(is_served)
        with go():
            if is_served():
                yield
                return


def journaled(site: Site) -> dict[str, int]:
    """Return the completion tokens by request id, as the first gateway's journal has them."""
    segments = segments_in(site.settings.journal_dir / "0")
    records = [record for segment in segments for record in read_frames(segment.read_bytes()).records]
    counts = [count for record in records if isinstance(record, Progressed) for count in record.counts]
    return {count.request_id: count.completion_tokens for count in counts}


def billed(site: Site, seen: list[Received], *reasons: str) -> list[Row]:
    """Return the clients' rows of the ledger, once all have ended for one of these reasons."""

    def rows() -> list[Row]:
        by_request = ledger(site)
        return [by_request[client.request_id] for client in seen if client.request_id in by_request]

    until(lambda: len(rows()) == len(seen) and {row.finish_reason for row in rows()} <= set(reasons))
    return rows()


def test_a_client_that_leaves_pays_what_the_engine_counted_at_the_abort(site: Site) -> None:
    seen = asyncio.run(Watcher(site, 0, max_tokens=ENDLESS).run(leave_after=7))
    (row,) = billed(site, [seen], "abort")
    assert row.completion_tokens == site.produced()[row.request_id] >= seen.num_tokens


def test_a_killed_engine_costs_what_was_on_its_way_to_clients(site: Site) -> None:
    seen = interrupted(site, lambda _: site.engine.kill())
    assert all(client.has_failed and not client.has_ended for client in seen)
    for row, client in zip(billed(site, seen, "error"), seen, strict=True):
        assert client.num_tokens <= row.completion_tokens <= site.produced()[row.request_id]
    site.engine.start()
    site.gateways[0].wait_ready()


def test_a_killed_gateways_requests_cost_what_their_engine_tells_the_next_one(site: Site) -> None:
    seen = interrupted(site, lambda _: site.gateways[0].kill())
    site.gateways[0].start()
    site.gateways[0].wait_ready()
    rows = billed(site, seen, "abort")
    assert [row.completion_tokens for row in rows] == [site.produced()[row.request_id] for row in rows]


def test_requests_whose_gateway_and_engine_are_gone_cost_what_the_journal_says(site: Site) -> None:
    def both(_: object) -> None:
        site.gateways[0].kill()
        site.engine.kill()

    seen = interrupted(site, both)
    site.engine.start()
    site.gateways[0].start()
    site.gateways[0].wait_ready()
    for row, client in zip(billed(site, seen, "error"), seen, strict=True):
        assert 5 <= client.num_tokens <= row.completion_tokens <= site.produced()[row.request_id]


def test_a_machine_that_dies_costs_what_its_disk_kept(site: Site) -> None:
    """Gateway, engine and database die at once, and the journal's last record is torn."""

    whole: dict[str, int] = {}
    kept: dict[str, int] = {}

    def machine(_: object) -> None:
        site.gateways[0].kill()
        site.engine.kill()
        site.postgres.kill()
        whole.update(journaled(site))
        *_, last = segments_in(site.settings.journal_dir / "0")
        with last.open("r+b") as segment:
            segment.truncate(last.stat().st_size - 1)
        kept.update(journaled(site))

    seen = interrupted(site, machine)
    site.torn |= {client.request_id for client in seen}
    site.engine.start()
    site.gateways[0].start()
    site.gateways[0].wait_ready()
    for row, client in zip(billed(site, seen, "error"), seen, strict=True):
        assert client.num_tokens <= whole[row.request_id] <= site.produced()[row.request_id]
        assert row.completion_tokens == kept[row.request_id]


def test_a_gateway_and_an_engine_that_were_frozen_past_their_heartbeats_agree_on_one_count(site: Site) -> None:
    """The first gateway gives its engine up; the second wakes up to an engine that may have given it up."""

    def freeze(watchers: list[Watcher]) -> None:
        with second.frozen():
            num_made = sum(site.produced().values())
            until(lambda: sum(site.produced().values()) > num_made + 40)  # the engine sends, and nobody takes it
            with site.engine.frozen():
                until(lambda: all(watcher.seen.has_failed for watcher in watchers[::2]))
            time.sleep(0.2)

    with another_gateway(site) as second:
        seen = interrupted(site, freeze, (ENDLESS, 200) * 2, (0, 1) * 2)
        assert all(client.has_failed and not client.has_ended for client in seen[::2])
        rows = billed(site, seen, "abort", "length")
        assert [row.completion_tokens for row in rows] == [site.produced()[row.request_id] for row in rows]


def test_a_database_that_goes_and_comes_costs_nothing(site: Site) -> None:
    def go_and_come(_: object) -> None:
        site.postgres.kill()
        site.postgres.restart()

    seen = interrupted(site, go_and_come, (LENGTH,) * 3)
    assert all(client.has_ended for client in seen)
    assert [row.completion_tokens for row in billed(site, seen, "length")] == [LENGTH] * 3


def test_a_gateway_that_stops_without_its_database_leaves_the_rest_to_the_next(site: Site) -> None:
    gateway, secret = site.gateways[0], unlimited_key(site)
    with database_away(site, 0, secret, site.postgres.stopped):
        codes: list[int | None] = []
        seen = interrupted(site, lambda _: codes.append(gateway.terminate()), (LENGTH,) * 3, secret=secret)
        assert codes == [0]
        assert all(client.has_ended for client in seen), "a stop lets streams finish"
        assert segments_in(site.settings.journal_dir / "0")
    gateway.start()
    gateway.wait_ready()
    assert [row.completion_tokens for row in billed(site, seen, "length")] == [LENGTH] * 3


def test_at_the_journals_bound_new_requests_are_refused_and_nothing_that_ran_is_lost(site: Site) -> None:
    secret = unlimited_key(site)

    def ask() -> Received:
        return asyncio.run(Watcher(site, 1, secret=secret, max_tokens=2).run())

    with another_gateway(site, journal_bytes=2000):
        with database_away(site, 1, secret, site.postgres.frozen):
            asked = [ask() for _ in range(6)]
        statuses = [client.status for client in asked]
        assert statuses == sorted(statuses) and set(statuses) == {200, 503}
        until(lambda: ask().status == 200)
        ran = [client for client in asked if client.status == 200]
        assert [row.completion_tokens for row in billed(site, ran, "length")] == [2] * len(ran)


def test_without_its_folder_what_the_engine_holds_is_billed_and_the_rest_is_counted(site: Site) -> None:
    """One client leaves while the database is frozen, and the engine forgets its request; the other streams run on."""
    gateway = site.gateways[0]

    def lose(watchers: list[Watcher]) -> None:
        until(lambda: num_open(site) == len(watchers))
        with site.postgres.frozen():
            watchers[0].leave.set()
            until(lambda: gateway.metric("vllm:num_requests_running") == len(watchers) - 1)
            until(lambda: gateway.metric("lorikeet_usage_unacknowledged") == 0)
            gateway.kill()
        site.lose_journals()

    lost, *others = interrupted(site, lose)
    site.lost.add(lost.request_id)
    execute(site, "UPDATE journals SET heard_at = heard_at - interval '1 hour'")
    gateway.start()
    gateway.wait_ready()
    billed(site, others, "abort")
    assert lost.request_id not in ledger(site)
    until(lambda: [engine["num_dropped"] for engine in site.reconciliation()["engines"]] == [0])
    assert [journal["open_requests"] for journal in site.reconciliation()["lost_journals"]] == [1]
