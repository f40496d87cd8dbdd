"""One agent: replicas are started, probed, replaced and stopped as the rows say."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from engine.config.model_folder import FAMILIES
from gateway.agent.hardware import this_host
from gateway.agent.steps import NO_ANSWER
from gateway.agent.tending import SILENT_S
from gateway.db.pools import pools
from gateway.db.pools.host_failures import list_failures
from gateway.db.pools.replicas import drain_replicas, replace_replicas
from tests.gateway.agent.site import Host, calling
from tests.gateway.model_folder import CONTEXT
from tests.installation.waiting import until
from tests.patience import PATIENCE_S


async def test_a_pool_gets_its_replicas_and_an_end_on_request_leaves_no_engine(host: Host) -> None:
    await host.pool(host.model(), num_replicas=2)
    agent = host.agent("--stop-engines")
    rows = await host.ready(2)
    assert len({each.address for each in rows}) == 2 and [each.generation for each in rows] == [1, 1]
    served = await host.served()
    assert served is not None and served.row.revision == 1
    assert len(host.pids()) == 2
    assert agent.terminate() == 0
    assert host.pids() == []
    assert {each.state for each in await host.replicas()} == {"starting"}
    host.agent()
    assert {each.generation for each in await host.ready(2)} == {2}


async def test_more_and_fewer_replicas_leave_the_oldest_one_untouched(host: Host) -> None:
    pool = await host.pool(host.model())
    host.agent()
    [first] = await host.ready()
    await host.scale(pool, 3)
    assert first.id in {each.id for each in await host.ready(3)}
    await host.scale(pool, 1)
    [left] = await host.ready()
    assert (left.id, left.generation) == (first.id, 1)
    await until(lambda: answer_with(len(host.pids()) == 1))


async def test_a_killed_engine_is_started_again_as_the_next_generation(host: Host) -> None:
    await host.pool(host.model())
    host.agent()
    [before] = await host.ready()
    os.kill(host.pids()[0], signal.SIGKILL)

    async def restarted() -> bool:
        return [(each.id, each.generation) for each in await host.replicas("ready")] == [(before.id, 2)]

    await until(restarted, host.log)


async def test_a_replica_that_does_not_answer_is_not_ready_until_it_does(host: Host) -> None:
    await host.pool(host.model())
    host.agent()
    [before] = await host.ready()
    [pid] = host.pids()
    os.kill(pid, signal.SIGSTOP)
    begun_s = time.monotonic()

    async def is_silent() -> bool:
        return [(each.state, each.why) for each in await host.replicas()] == [("loading", NO_ANSWER)]

    try:
        await until(is_silent, host.log)
        assert time.monotonic() - begun_s < SILENT_S / 2, "long before it is given up"
    finally:
        host.go_on(pid)
    [after] = await host.ready()
    assert (after.id, after.generation, host.pids()) == (before.id, before.generation, [pid]), "it was not started anew"


async def test_the_end_of_an_engine_is_written_at_once(host: Host) -> None:
    await host.pool(host.model(), num_replicas=1)
    host.agent()
    await host.ready()
    host.kill(host.pids()[0])
    begun_s = time.monotonic()

    async def is_not_ready() -> bool:
        return await host.replicas("ready") == []

    await until(is_not_ready, host.log)
    assert time.monotonic() - begun_s < SILENT_S / 2


async def test_an_engine_that_never_answers_fails_when_its_time_is_over(host: Host) -> None:
    host.variables["LORIKEET_REPLICA_START_SECONDS"] = "2"
    await host.pool(host.model(mute=""))
    host.agent()

    async def failed() -> bool:
        return any(each.state == "failed" for each in await host.replicas())

    await until(failed, host.log)
    [row] = await host.replicas()
    assert row.why == "its engine did not answer within 2 s of its start (LORIKEET_REPLICA_START_SECONDS)"


async def test_a_crash_loop_backs_off_and_says_why(host: Host) -> None:
    await host.pool(host.model(crash="no such device"))
    host.agent()

    async def twice() -> bool:
        return any(each.num_failures >= 2 and each.state == "failed" for each in await host.replicas())

    await until(twice, host.log)
    [row] = await host.replicas()
    assert row.why == "its process ended (code 3): no such device"
    assert row.retry_at is not None and (row.retry_at - row.since).total_seconds() >= 1
    assert row.generation == row.num_failures, "each start is a generation"


async def test_a_failed_replica_is_tried_again_though_the_databases_clock_is_ahead(host: Host) -> None:
    await host.pool(host.model(crash="no such device"))
    host.agent()
    async with host.database.acquire() as conn:
        await conn.execute(
            "CREATE FUNCTION an_hour_ahead() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN NEW.retry_at := NEW.retry_at + interval '1 hour'; RETURN NEW; END $$"
        )
        await conn.execute(
            "CREATE TRIGGER ahead BEFORE UPDATE ON replicas FOR EACH ROW"
            " WHEN (NEW.retry_at IS DISTINCT FROM OLD.retry_at) EXECUTE FUNCTION an_hour_ahead()"
        )

    async def again() -> bool:
        return any(each.num_failures >= 3 for each in await host.replicas())

    await until(again, host.log)


@pytest.mark.parametrize("flags", [("--give-up",), ("--give-up", "--stop-engines")])
async def test_an_engine_that_can_never_run_ends_a_start_that_waits_for_it(host: Host, flags: tuple[str, ...]) -> None:
    await host.pool(host.model(broken="LORIKEET_DEVICE is cuda, but there is none"))
    agent = host.agent(*flags)
    assert agent.popen is not None and agent.popen.wait(PATIENCE_S) == os.EX_CONFIG
    assert "agent: LORIKEET_DEVICE is cuda, but there is none" in host.log().splitlines()


async def test_a_change_of_revision_is_switched_to_when_it_is_ready_and_the_old_one_goes(host: Host) -> None:
    old = host.model()
    pool = await host.pool(old, num_replicas=2)
    host.agent()
    before = await host.ready(2)
    new = host.model("another")
    number = await host.want(pool, str(new), max_waiting="99")
    after = await host.ready(2, revision=number)
    assert not {each.id for each in before} & {each.id for each in after}
    served = await host.served()
    assert served is not None and served.row.revision == number
    assert served.revisions[number].num_bytes and served.revisions[number].folder == str(new)
    async with host.database.acquire() as conn:
        states = await conn.fetch("SELECT state FROM pool_revisions ORDER BY revision")
    assert [row["state"] for row in states] == ["retired", "prepared"]
    assert len(host.pids()) == 2


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"broken": "the model is wrong"}, "the model is wrong"),
        ({"crash": "it is unlucky"}, "3 starts in a row failed: its process ended (code 3): it is unlucky"),
        ({"config.json": "{}"}, f"config.json: model_type is None; supported: {', '.join(FAMILIES)}"),
        ({"model.safetensors": "\0" * 8}, "model.safetensors is no file of safetensors"),
        ({"chat_template.jinja": "{% if"}, "chat_template.jinja is none: unexpected 'end of template'"),
    ],
)
async def test_a_revision_that_fails_goes_back_to_the_one_that_serves(
    host: Host, files: dict[str, str], why: str
) -> None:
    pool = await host.pool(host.model())
    host.agent()
    [before] = await host.ready()
    number = await host.want(pool, str(host.model("another", **files)))

    async def back() -> bool:
        served = await host.served()
        return served is not None and served.row.wanted_revision == 1

    await until(back, host.log)
    async with host.database.acquire() as conn:
        row = await conn.fetchrow("SELECT state, why FROM pool_revisions WHERE revision = $1", number)
    assert row is not None and row["state"] == "failed" and row["why"].endswith(why), row
    [after] = await host.ready()
    assert (after.id, after.generation, after.revision) == (before.id, before.generation, 1)


async def test_a_model_that_does_not_fit_is_refused_with_the_sum_before_it_starts(host: Host) -> None:
    pool = await host.pool(host.model())
    host.agent()
    await host.ready()
    number = await host.want(pool, str(host.model("another")), kv_cache_bytes="900000GiB")

    async def why() -> str:
        async with host.database.acquire() as conn:
            found: str = await conn.fetchval("SELECT why FROM pool_revisions WHERE revision = $1", number)
        return found

    refusal = await until(why, host.log)
    assert refusal.startswith("A replica needs 900000.5 GiB (weights 0.0 GiB, KV cache 900000.0 GiB, adapters 0.0 GiB")
    assert len(await host.ready()) == 1 and refusal.endswith("GiB in all.")


async def test_a_context_that_the_model_does_not_have_is_refused_by_its_name(host: Host) -> None:
    folder = host.model()
    pool = await host.pool(folder)
    host.agent()
    await host.ready()
    number = await host.want(pool, str(folder), max_model_len=str(CONTEXT + 1))

    async def why() -> str:
        async with host.database.acquire() as conn:
            found: str = await conn.fetchval(
                "SELECT why FROM pool_revisions WHERE revision = $1 AND state = 'failed'", number
            )
        return found

    assert (
        await until(why, host.log) == f"max_model_len={CONTEXT + 1} is more than the {CONTEXT} positions of the model"
    )


async def test_a_replica_ends_before_its_successor_starts_where_both_do_not_fit(host: Host) -> None:
    folder = host.model()
    pool = await host.pool(folder)
    host.agent()
    await host.ready()
    most = f"{this_host('cpu').memory_bytes * 6 // 10 >> 20}MiB"
    large = await host.want(pool, str(folder), kv_cache_bytes=most)
    await host.ready(revision=large)
    other = await host.want(pool, str(folder), kv_cache_bytes=most, max_waiting="99")
    seen = set()

    async def changed() -> bool:
        rows = await host.replicas("loading", "ready", "draining")
        seen.add(tuple(sorted(each.revision for each in rows)))
        served = await host.served()
        return served is not None and served.row.revision == other

    await until(changed, host.log)
    assert seen >= {(large,), (other,)} and (large, other) not in seen


async def test_the_adapters_of_the_old_replicas_must_work_on_the_new_ones(host: Host) -> None:
    folder = host.model()
    pool = await host.pool(folder)
    host.agent()
    [row] = await host.ready()
    async with calling(host, row) as engine:
        await engine.use("1" * 64)
        good = await host.want(pool, str(folder), max_waiting="99")
        [row] = await host.ready(revision=good)
    async with calling(host, row) as engine:
        await engine.use("0" * 64)  # one that changes nothing, which a probe refuses
        bad = await host.want(pool, str(folder), max_waiting="98")

        async def why() -> str:
            async with host.database.acquire() as conn:
                found: str = await conn.fetchval("SELECT why FROM pool_revisions WHERE revision = $1", bad)
            return found

        refusal = await until(why, host.log)
        assert refusal.startswith("adapter 000000000000 does not work with it: it changes nothing")
        [after] = await host.ready(revision=good)
        assert after.id == row.id


async def test_engines_of_one_host_share_its_processors_and_its_defaults(host: Host) -> None:
    folder = host.model()
    host.variables["LORIKEET_MAX_WAITING"] = "7"
    pool = await host.pool(folder)
    host.agent()
    await host.ready()
    assert [each.num_threads for each in host.configurations(folder)] == [0], "alone, it adapts to what others leave"
    await host.scale(pool, 2)
    await host.ready(2)
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    assert sorted(each.num_threads for each in host.configurations(folder)) == [0, share]
    number = await host.want(pool, str(folder), max_num_seqs="3", num_threads="1")
    await host.ready(2, revision=number)
    newest = [each for each in host.configurations(folder) if each.max_num_seqs == 3]
    assert [(each.max_waiting, each.num_threads, each.unattended_s) for each in newest] == [(7, 1, 600.0)] * 2


async def test_an_engine_that_nobody_is_connected_to_ends_by_itself(host: Host) -> None:
    await host.pool(host.model())
    host.variables["LORIKEET_UNATTENDED_MINUTES"] = "0.02"
    agent = host.agent()
    await host.ready()
    await asyncio.sleep(2.0)
    assert len(host.pids()) == 1, "its agent is connected"
    agent.kill()
    await until(lambda: answer_with(host.pids() == []))
    host.agent()

    async def restarted() -> bool:
        return [each.generation for each in await host.replicas("ready")] == [2]

    await until(restarted, host.log)


async def test_a_replica_is_replaced_by_another_one_on_request(host: Host) -> None:
    await host.pool(host.model())
    host.agent()
    [before] = await host.ready()
    async with host.database.acquire() as conn:
        await replace_replicas(conn, [before.id])

    async def replaced() -> bool:
        rows = await host.replicas()
        assert any(each.state == "ready" for each in rows), "the old one serves until the new one does"
        return len(rows) == 1 and rows[0].id != before.id

    await until(replaced, host.log)


async def test_a_draining_replica_ends_what_it_runs_before_it_is_stopped(host: Host) -> None:
    await host.pool(host.model(), num_replicas=1)
    host.agent()
    [row] = await host.ready()
    async with calling(host, row) as engine:
        answer = engine.call(num_tokens=400)  # two seconds
        await engine.begun()
        async with host.database.acquire() as conn:
            await drain_replicas(conn, [row.id], "for the test")
        final = await answer
    assert final.error is None and final.usage.completion_tokens == 400
    [other] = await host.ready()
    assert other.id != row.id, "the pool's number is kept"


async def test_a_replica_that_never_ends_what_it_runs_is_stopped_when_its_time_is_over(host: Host) -> None:
    pool = await host.pool(host.model())
    host.variables["LORIKEET_REPLICA_DRAIN_SECONDS"] = "1"
    host.agent()
    [row] = await host.ready()
    async with calling(host, row) as engine:
        answer = engine.call(num_tokens=10**6)
        await engine.begun()
        await host.scale(pool, 0)
        await host.ready(0)
        assert (await answer) is None, "it was cut off"


async def test_a_removed_pool_leaves_nothing(host: Host) -> None:
    pool = await host.pool(host.model())
    host.agent()
    await host.ready()
    async with host.database.acquire() as conn:
        await pools.remove_pool(conn, pool.id)
    await until(lambda: answer_with(host.pids() == []))
    await host.ready(0)


async def test_a_revision_that_could_not_be_prepared_is_tried_again_by_the_next_agent(host: Host) -> None:
    await host.pool(host.model())
    async with host.database.acquire() as conn:
        await conn.execute("UPDATE pool_revisions SET state = 'failed', why = 'no hub'")
    host.agent()
    await host.ready()


async def test_a_lost_data_folder_makes_another_host_whose_engines_serve(host: Host) -> None:
    pool = await host.pool(host.model())
    agent = host.agent("--stop-engines")
    [before] = await host.ready()
    agent.terminate()
    (host.data_dir / "host.id").unlink()
    host.agent()

    async def replaced() -> bool:
        return [each.id != before.id for each in await host.replicas("ready")] == [True]

    await until(replaced, host.log)
    async with host.database.acquire() as conn:
        assert await conn.fetchval("SELECT state FROM replicas WHERE id = $1", before.id) == "stopped"
    assert pool.id


async def test_a_model_whose_folder_has_moved_is_found_again_by_its_name(host: Host) -> None:
    folder = host.model()
    pool = await host.pool(folder)
    async with host.database.acquire() as conn:
        await conn.execute("UPDATE pool_revisions SET folder = '/nowhere' WHERE pool_id = $1", pool.id)
    host.agent()
    await host.ready()
    served = await host.served()
    assert served is not None and served.revisions[1].folder == str(folder)


async def answer_with(answer: bool) -> bool:
    return answer


async def test_a_host_that_has_lost_a_model_gets_no_replica_of_it_until_the_model_is_back(host: Host) -> None:
    folder = host.model()
    await host.pool(folder)
    moved = folder.rename(folder.with_name("elsewhere"))
    agent = host.agent()

    async def fails() -> bool:
        async with host.database.acquire() as conn:
            [failure] = await list_failures(conn) or [None]
        return failure is not None and "tiny" in failure.why and await host.replicas() == []

    await until(fails, host.log)
    agent.terminate()
    moved.rename(folder)
    host.agent()
    await host.ready()
    async with host.database.acquire() as conn:
        assert await list_failures(conn) == []
