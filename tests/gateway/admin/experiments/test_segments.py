"""Results and health over HTTP by segment: where units are lost, and where a metric differs."""

from __future__ import annotations

from tests.gateway.admin.experiments.conftest import Lab
from tests.gateway.admin.experiments.test_findings import HOUR, get, run, started
from tests.gateway.experiments.books_rows import NOW, UnitRequest, keep_books, send, unit


async def test_results_are_shown_by_segment_on_request(lab: Lab) -> None:
    made, rows = await started(lab)
    key = (await lab.client.post(f"{lab.project}/service_accounts", json={"name": "widget"})).json()["api_key"]["id"]
    await run(lab, rows)
    async with lab.database.acquire() as conn:
        sent = [
            UnitRequest(unit(1_000 + n), n % 2, NOW - 3 * HOUR, stream=True, api_key_id=key, tokens=50 + n % 7)
            for n in range(40)
        ]
        await send(conn, rows, sent)
    await keep_books(lab.database)
    assert (await get(lab, made, "results"))["segments"] is None
    found = await get(lab, made, "results", segment="stream")
    by_value = {each["split"]["value"]: each for each in found["segments"]}
    units = {value: [arm["units"] for arm in each["split"]["arms"]] for value, each in by_value.items()}
    assert units == {"false": [30, 30], "true": [20, 20]}
    verdicts = {
        value: [each["verdict"] for each in segment["comparisons"] if each["metric"] == "completion_tokens"]
        for value, segment in by_value.items()
    }
    assert verdicts == {"false": ["better"], "true": ["unclear"]}
    assert [arm["units"] for arm in found["arms"]] == [50, 50], "the whole is beside them"
    only = await get(lab, made, "results", segment="api_key", metric="cost_nanos")
    assert [each["split"]["name"] for each in only["segments"]] == [None, "widget"]
    assert {each["metric"] for segment in only["segments"] for each in segment["comparisons"]} == {"cost_nanos"}
    for params in ({"segment": "colour"}, {"segment": "stream", "as_of": "4000000000"}):
        reply = await lab.client.get(f"{lab.path}/{made['id']}/results", params=params)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "segment"), reply.text


async def test_health_names_the_segment_that_loses_units(lab: Lab) -> None:
    made, rows = await started(lab)
    async with lab.database.acquire() as conn:
        whole = [UnitRequest(unit(n), n % 2, NOW - 3 * HOUR) for n in range(400)]
        await send(
            conn, rows, [*whole, *(UnitRequest(unit(1_000 + n), 0, NOW - 3 * HOUR, stream=True) for n in range(50))]
        )
    await keep_books(lab.database)
    found = await get(lab, made, "health")
    assert (found["status"], found["is_srm"]) == ("broken", False)
    (segment,) = found["segments"]
    assert (segment["kind"], segment["value"], [arm["units"] for arm in segment["arms"]]) == ("stream", "true", [50, 0])
    assert found["problems"] == [
        "Units that came first with streams are not split as declared: 50 in control (25 declared), 0 in warm "
        "(25 declared). Look for what loses some there."
    ]
