"""A unit that has seen an arm keeps it through new weights, replays and several prompts, on both gateways."""

from __future__ import annotations

import msgspec

from gateway.db.experiments.keys import sealed_key
from gateway.domain.experiments.allocation import exposed_units, with_weights
from gateway.domain.experiments.assignment import assign, unit_digest
from tests.gateway.experiments.making import set_split, set_state
from tests.gateway.routing.lab import COMPLETIONS, EMBEDDINGS, HEADER, Lab, arm_of

NUM_UNITS = 60


async def test_units_that_were_exposed_keep_their_arm_under_new_weights(lab: Lab) -> None:
    made = await lab.start()
    key = await lab.key()
    before = [f"user-{number}" for number in range(NUM_UNITS)]
    arms = {unit: arm_of(await lab.ask(unit, gateway=number % 2)) for number, unit in enumerate(before)}
    rows = await lab.rows("experiment_units", NUM_UNITS)
    exposed = exposed_units({row["digest"]: row["epoch"] for row in rows})
    split = with_weights(made.split, (1, 9), exposed)
    async with lab.connected() as conn:
        await set_split(conn, made.id, split, keeps_exposed=True)
    for gateway in range(2):
        await lab.until("v=2", "user-0", gateway)
        for unit in before:
            assert f'arm="{arms[unit]}"' in (await lab.ask(unit, gateway=gateway)).headers[HEADER]
    others = [f"new-{number}" for number in range(NUM_UNITS)]
    for number, unit in enumerate(others):
        expected = assign(split, unit, unit_digest(key, unit))
        assert expected.epoch == 2
        arm = made.definition.arms[expected.arm].name
        assert f'arm="{arm}";reason=split' in (await lab.ask(unit, gateway=number % 2)).headers[HEADER]
    noted = {row["digest"]: row["epoch"] for row in await lab.rows("experiment_units", 2 * NUM_UNITS)}
    assert {noted[unit_digest(key, unit)] for unit in before} == {1}
    assert {noted[unit_digest(key, unit)] for unit in others} == {2}


async def test_while_enrolment_is_closed_new_units_get_the_control(lab: Lab) -> None:
    made = await lab.start()
    async with lab.connected() as conn:
        await set_split(conn, made.id, msgspec.structs.replace(made.split, enrolling=False), keeps_exposed=True)
    await lab.until("reason=disabled", "somebody")
    for number in range(10):
        assert 'arm="control";reason=disabled' in (await lab.ask(f"other-{number}")).headers[HEADER]
    reasons = {row["reason"] for row in await lab.rows("experiment_reasons")}
    assert reasons == {"enrolment_closed"}


async def test_all_prompts_of_a_request_share_its_exposure(lab: Lab) -> None:
    await lab.start()
    texts, num_rows = ["one", "two", "three"], 0
    for path, given in ((COMPLETIONS, {"prompt": texts}), (EMBEDDINGS, {"input": texts})):
        reply = await lab.ask("ann", path, **given)
        request_id = reply.headers["x-request-id"]
        arm = arm_of(reply)
        num_rows += 3
        rows = [row for row in await lab.rows("ledger", num_rows) if row["request_id"].startswith(request_id)]
        assert {row["request_id"] for row in rows} == {request_id, f"{request_id}.1", f"{request_id}.2"}
        assert {(row["experiment_arm"], row["experiment_epoch"]) for row in rows} == {(int(arm == "warm"), 1)}
    assert len(await lab.rows("experiment_units")) == 1


async def test_a_stream_names_its_arm_as_well(lab: Lab) -> None:
    await lab.start()
    whole, streamed = await lab.ask("ann"), await lab.ask("ann", stream=True)
    assert streamed.headers[HEADER] == whole.headers[HEADER]
    assert streamed.text.endswith("data: [DONE]\n\n")


async def test_a_replay_is_the_same_reply_and_no_exposure(lab: Lab) -> None:
    made = await lab.start()
    key = {"idempotency-key": "once"}
    first = await lab.ask("ann", headers=key)
    await lab.rows("experiment_requests")
    async with lab.connected() as conn:
        await set_split(conn, made.id, with_weights(made.split, (1, 9), exposed_units({})))
        await set_state(conn, made.id, "paused")
    await lab.until("v=2", "bob")
    await lab.until("reason=disabled", "bob")
    for _ in range(3):
        again = await lab.ask("ann", headers=key)
        assert again.headers["idempotent-replayed"] == "true"
        assert (again.content, again.headers[HEADER]) == (first.content, first.headers[HEADER])
    await lab.rows("experiment_reasons")
    (digest,) = await lab.digests("ann")
    exposed = [row["request_id"] for row in await lab.rows("experiment_requests") if row["digest"] == digest]
    assert exposed == [first.headers["x-request-id"]]


async def test_the_secret_of_a_project_is_made_once_and_unreadable(lab: Lab) -> None:
    await lab.start()
    arms = {arm_of(await lab.ask("ann", gateway=gateway)) for gateway in range(2)}
    assert len(arms) == 1
    async with lab.connected() as conn:
        found = await sealed_key(conn, lab.tenant.project_id)
    assert found is not None
    assert await lab.key() not in found[1]
