"""A collector that is dead, slow or full costs requests nothing: spans are dropped, and counted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter

from gateway.domain.tracing.span import Span
from gateway.observability.tracing.exporter import BATCH_SPANS, Exporter
from tests.gateway.live import make_tenant
from tests.gateway.model_folder import make_model_folder
from tests.gateway.observability.tracing.collector import running_collector
from tests.installation.live_gateway import running_gateways
from tests.installation.waiting import until
from tests.patience import PATIENCE_S

RESOURCES = {"gateway": {"service.name": "g"}, "engine": {"service.name": "e"}}


class SendingExporter:
    """An exporter with short timeouts, and the counts of its spans by outcome."""

    def __init__(
        self,
        url: str,
        *,
        max_waiting: int = 8192,
        timeout_s: float = PATIENCE_S,
        retry_after_s: tuple[float, ...] = (0.01, 0.01),
    ) -> None:
        self.registry = CollectorRegistry()
        outcomes = Counter("spans", "Spans.", ["outcome"], registry=self.registry)
        self.exporter = Exporter(
            url,
            {},
            RESOURCES,  # type: ignore[arg-type]
            outcomes,
            version="1",
            max_waiting=max_waiting,
            every_s=0.01,
            timeout_s=timeout_s,
            retry_after_s=retry_after_s,
        )

    def add(self, number: int) -> None:
        for at in range(number):
            self.exporter.add(Span("1" * 32, f"{at + 1:016x}", "", "s", "server", 1, 2))

    def count(self, outcome: str) -> float:
        return self.registry.get_sample_value("spans_total", {"outcome": outcome}) or 0.0

    async def until(self, is_true: Callable[[], bool]) -> None:
        async def ask() -> bool:
            return is_true()

        await until(ask, lambda: str([(each, self.count(each)) for each in ("sent", "no_room", "not_taken")]))


@asynccontextmanager
async def sending(sending: SendingExporter) -> AsyncIterator[SendingExporter]:
    sending.exporter.start()
    try:
        yield sending
    finally:
        await sending.exporter.stop()


def closed_url() -> str:
    """Return the URL of a port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}/v1/traces"


async def test_all_spans_come_once_in_messages_of_a_bounded_size() -> None:
    number = 2 * BATCH_SPANS + 10
    with running_collector() as collector:
        async with sending(SendingExporter(collector.url)) as made:
            made.add(number)
            await made.until(lambda: made.count("sent") == number)
        assert len({each.span_id for each in collector.spans}) == len(collector.spans) == number
        assert len(collector.bodies) == 3


async def test_a_message_that_the_collector_may_take_later_is_sent_again() -> None:
    with running_collector() as collector:
        collector.status = 503
        async with sending(SendingExporter(collector.url, retry_after_s=(0.05,) * 100)) as made:
            made.add(3)
            await made.until(lambda: collector.num_asked > 2)
            collector.status = 200
            await made.until(lambda: made.count("sent") == 3)
        assert len(collector.spans) == 3 and not made.count("not_taken")


async def test_a_message_that_the_collector_refuses_is_not_sent_again() -> None:
    with running_collector() as collector:
        collector.status = 400
        async with sending(SendingExporter(collector.url)) as made:
            made.add(3)
            await made.until(lambda: made.count("not_taken") == 3)
            assert collector.num_asked == 1


async def test_without_a_collector_spans_are_dropped_and_counted() -> None:
    async with sending(SendingExporter(closed_url(), max_waiting=100)) as made:
        for _ in range(20):
            made.add(30)
            await asyncio.sleep(0)
        await made.until(lambda: made.count("no_room") + made.count("not_taken") == 600)
        assert made.count("no_room") > 0 and not made.count("sent")


async def test_a_collector_that_does_not_answer_holds_a_bounded_number_of_spans() -> None:
    with running_collector() as collector:
        collector.may_answer.clear()
        async with sending(SendingExporter(collector.url, max_waiting=100, timeout_s=0.3, retry_after_s=())) as made:
            made.add(50)
            await made.until(lambda: collector.num_asked == 1)
            made.add(1000)
            assert made.count("no_room") >= 900
            await made.until(lambda: made.count("not_taken") >= 50)


async def test_a_stop_sends_what_waits() -> None:
    with running_collector() as collector:
        made = SendingExporter(collector.url)
        made.exporter.start()
        made.add(5)
        await made.exporter.stop()
        assert len(collector.spans) == made.count("sent") == 5


async def test_a_stop_counts_what_it_cannot_send() -> None:
    made = SendingExporter(closed_url())
    made.exporter.start()
    made.add(5)
    await made.exporter.stop()
    assert made.count("not_taken") == 5


@pytest.mark.parametrize("is_dead", [True, False])
async def test_requests_go_on_without_a_collector_that_answers(dsn: str, tmp_path: Path, is_dead: bool) -> None:
    """More requests are answered than any queue of spans would wait for."""
    tenant = await make_tenant(dsn, "acme", "pirate", "1")
    model_dir = make_model_folder(tmp_path / "model")
    with running_collector() as collector:
        collector.may_answer.clear()
        url = closed_url() if is_dead else collector.url
        with running_gateways(dsn, model_dir, data_dir=tmp_path, traces_url=url) as installed:
            headers = {"authorization": f"Bearer {tenant.key}"}
            async with httpx.AsyncClient(base_url=installed.gateway.url, headers=headers, timeout=PATIENCE_S) as client:
                body = {"model": "tiny", "prompt": "abc", "max_tokens": 1}
                replies = await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(100)))
            assert {each.status_code for each in replies} == {200}
            if not is_dead:
                assert collector.num_asked <= 1
            collector.may_answer.set()
