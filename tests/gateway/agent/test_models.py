"""The models of one host: what could not be prepared there is tried again, also once another host has prepared it."""

from __future__ import annotations

from engine.config import model_digest
from gateway.agent.hardware import Hardware
from gateway.agent.models import MAX_RETRY_S, RETRY_S, Models, retry_pause_s
from gateway.db.pools.host_failures import list_failures
from gateway.db.pools.served import list_served
from gateway.settings import Settings
from tests.gateway.agent.site import Host
from tests.gateway.pools.acting_agent import Agent
from tests.installation.waiting import until


async def test_a_host_that_failed_once_tries_again_though_the_revision_is_prepared_elsewhere(host: Host) -> None:
    here, other = Agent(host.database), Agent(host.database, "host_2", "gpu-2")
    await here.claim()
    await other.claim()
    pool = await host.pool(host.model())
    folder = host.model("another")
    digest, config = model_digest(folder), folder / "config.json"
    text = config.read_text()
    config.unlink()
    revision = await host.want(pool, str(folder))
    settings = Settings(data_dir=host.data_dir)
    models = Models(host.database, settings, Hardware("gpu-1", 8, 64 << 30, [], []), here.host_id, lambda: None)

    async def prepare_until(num_failures: int) -> None:
        async def is_so() -> bool:
            async with host.database.acquire() as conn:
                models.prepare(await list_served(conn))
                return len(await list_failures(conn)) == num_failures

        await until(is_so, "the number of failures never became as expected")

    try:
        await prepare_until(1)
        async with host.database.acquire() as conn:
            [served] = await list_served(conn)
        assert models.why_not(served.revisions[revision])
        await other.prepare(pool.id, revision, digest, folder=str(folder))
        config.write_text(text)
        models._not_before_s.clear()  # its pause is over
        await prepare_until(0)
    finally:
        await models.stop()
    assert models.why_not(served.revisions[revision]) == ""


def test_the_pause_grows_up_to_an_hour_however_often_a_preparation_has_failed() -> None:
    assert [retry_pause_s(number) for number in (0, 1, 9, 10**6)] == [RETRY_S, 2 * RETRY_S, 2560.0, MAX_RETRY_S]
