"""Gateways in processes of their own, as many as wanted, over one database and one fake engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import asyncpg
import msgspec

from gateway.db.billing.prices import add_version
from gateway.db.organization.organizations import ensure_organization
from gateway.domain.billing.book import Entry
from gateway.settings import Settings
from tests.gateway.live import BASE, FakeEngine
from tests.gateway.model_folder import make_model_folder
from tests.installation.gateway_process import GatewayProcess
from tests.installation.tenants import Key as Key
from tests.installation.tenants import make_key as make_key
from tests.installation.tenants import put_limit as put_limit

INPUT_NANOS, OUTPUT_NANOS = 3, 7
"""Prices in nanos per token, cached or not."""

JUMPS_S = (0, 3600, -3600)
"""The seconds by which clocks of a fleet's gateways jump back and forth."""


class Fleet(msgspec.Struct, frozen=True):
    """Running gateways over one database."""

    dsn: str
    urls: list[str]
    """The URLs of the gateways."""
    gateways: list[GatewayProcess]


@contextmanager
def running_fleet(
    dsn: str,
    folder: Path,
    *,
    num_gateways: int = 3,
    engine_flags: tuple[str, ...] = (),
    jumps_s: Sequence[int] = JUMPS_S,
) -> Iterator[Fleet]:
    """Serve over a migrated database until the context is left.

    jumps_s: the jumps of the gateways' clocks, in turns.
    """
    model_dir = make_model_folder(folder / "model")
    settings = Settings(data_dir=folder, model=str(model_dir), model_name=BASE)
    settings.run_dir.mkdir(parents=True)
    asyncio.run(set_prices(dsn))
    with ExitStack() as stack:
        stack.callback(FakeEngine(settings.engine.endpoint, model_dir, *engine_flags).stop)
        gateways = []
        for number in range(num_gateways):
            gateways.append(GatewayProcess(settings, dsn, number, clock_jumps_s=jumps_s[number % len(jumps_s)]))
            stack.callback(gateways[-1].close)
        for gateway in gateways:
            gateway.start()
            stack.callback(gateway.terminate)
        for gateway in gateways:
            gateway.wait_ready()
            stack.callback(gateway.begin_to_stop)
        yield Fleet(dsn, [gateway.url for gateway in gateways], gateways)


def completion(prompt: list[int], max_tokens: int, **fields: object) -> dict[str, object]:
    return {"model": BASE, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, **fields}


async def set_prices(dsn: str) -> None:
    """Set one price for all models of the default organization."""
    million = 1_000_000
    entry = Entry("*", "*", "*", INPUT_NANOS * million, INPUT_NANOS * million, OUTPUT_NANOS * million)
    conn = await asyncpg.connect(dsn)
    try:
        organization = await ensure_organization(conn, "default")
        async with conn.transaction():
            await add_version(conn, organization.id, currency="usd", entries=[entry], discounts={}, effective_at=None)
    finally:
        await conn.close()
