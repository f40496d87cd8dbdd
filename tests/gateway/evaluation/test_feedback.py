"""Feedback over HTTP: stored once, read and withdrawn by its own project, in whatever order votes come."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from gateway.content.keys import content_keys
from gateway.db.pool import Database
from gateway.domain.experiments.assignment import unit_digest
from gateway.domain.experiments.feedback.vote_ids import signed_id
from gateway.experiments.keys import ProjectKeys
from gateway.support.cipher import Cipher
from tests.gateway.content.conftest import all_rows_as_text
from tests.gateway.evaluation.conftest import Site
from tests.gateway.evaluation.furniture import put_experiment, put_unit


async def project_key(site: Site) -> bytes:
    """Return the secret key of the site's project, decrypted from the database as the gateway does it."""
    services = site.house.gateway._services
    assert services is not None
    cipher = Cipher(content_keys(services.settings.content_key, services.settings.content_key_path))
    async with await Database.connect(site.house.dsn, max_size=1) as database:
        return await ProjectKeys(database, cipher).key(site.key.project_id)


@pytest.mark.usefixtures("no_bookkeeper")
async def test_a_vote_is_read_as_it_was_sent_and_waits_for_its_experiment(site: Site) -> None:
    request_id = await site.request()
    made = await site.vote(request_id=request_id, source="human", comment="good, mail ann@example.com")
    assert made == {"object": "feedback", "id": made["id"], "replaced": False}
    shown = (await site.client.get(f"/v1/feedback/{made['id']}")).json()
    assert (shown["metric"], shown["value"], shown["source"]) == ("thumbs_up", True, "human")
    assert (shown["request_id"], shown["unit_digest"]) == (request_id, None)
    assert shown["comment"] == "good, mail [email]"
    assert (await site.client.get("/v1/feedback")).json()["data"] == [shown]
    assert await site.events() == [(site.experiment_id, made["id"])]


@pytest.mark.usefixtures("no_bookkeeper")
async def test_a_vote_about_an_unknown_unit_waits_once_however_many_experiments_run(site: Site) -> None:
    for _ in range(3):
        await put_experiment(site.conn, site.key.project_id)
    made = await site.vote(unit="yet-unknown@example.com", occurred_at=1_760_000_000)
    assert [feedback for _, feedback in await site.events()] == [made["id"]]


async def test_comments_and_units_are_nowhere_in_the_tables(site: Site) -> None:
    await site.vote(unit="zoe@example.com", occurred_at=1_760_000_000, comment="a quince of a reply", id="zoe-1")
    async with await Database.connect(site.house.dsn) as database:
        text = await all_rows_as_text(database)
    for secret in ("zoe@example.com", "zoe-1", "a quince of a reply"):
        assert secret not in text
        assert secret.encode().hex() not in text


async def test_values_are_kept_as_integers_of_their_metric(site: Site) -> None:
    for metric, value, kept in [("stars", 4.5, 4_500_000), ("stars", 1, 1_000_000), ("mood", "bad", -500_000)]:
        made = await site.vote(request_id=await site.request(), metric=metric, value=value)
        assert (await site.client.get(f"/v1/feedback/{made['id']}")).json()["value"] == value
        assert await site.conn.fetchval("SELECT value FROM feedback WHERE id = $1", made["id"]) == kept


async def test_the_latest_vote_of_a_source_counts_in_any_order(site: Site) -> None:
    votes: list[dict[str, Any]] = [
        {"value": True, "occurred_at": 1_760_000_000},
        {"value": False, "occurred_at": 1_760_000_001},
        {"value": True, "occurred_at": 1_760_000_002},
        {"value": False, "occurred_at": 1_760_000_002},
    ]
    request_id, found = await site.request(), set()
    for order in itertools.permutations(votes):
        answers = [await site.vote(request_id=request_id, **vote) for vote in order]
        shown = (await site.client.get(f"/v1/feedback/{answers[0]['id']}")).json()
        found.add((shown["value"], shown["occurred_at"]))
        for at, answer in enumerate(answers):
            is_older = any(vote["occurred_at"] > order[at]["occurred_at"] for vote in order[:at])
            assert not (is_older and answer["replaced"]), "an older vote replaces nothing"
        await site.client.delete(f"/v1/feedback/{answers[0]['id']}")
    assert len(found) == 1
    assert found.pop()[1] == 1_760_000_002


async def test_sources_and_metrics_are_kept_apart(site: Site) -> None:
    request_id = await site.request()
    ids = [
        (await site.vote(request_id=request_id, source=source, metric=metric, value=value))["id"]
        for source in ("user", "judge", "code", "human")
        for metric, value in (("thumbs_up", True), ("stars", 3))
    ]
    assert len(set(ids)) == len(await site.counted()) == 8


async def test_a_clients_id_makes_a_vote_once(site: Site) -> None:
    request_id = await site.request()
    first = await site.vote(request_id=request_id, id="v-1")
    later = await site.vote(request_id=request_id, id="v-2", value=False)
    assert (first["replaced"], later["replaced"]) == (False, True)
    assert await site.vote(request_id=request_id, id="v-1") == first, "which does not come back after the later one"
    assert await site.counted() == [("thumbs_up", 0)]
    for other in ({"value": False}, {"comment": "x"}, {"source": "judge"}, {"request_id": await site.request()}):
        body = {"metric": "thumbs_up", "value": True, "request_id": request_id, "id": "v-1"} | other
        reply = await site.client.post("/v1/feedback", json=body)
        assert (reply.status_code, reply.json()["error"]["code"], reply.json()["error"]["param"]) == (
            409,
            "id_used",
            "id",
        )


async def test_a_list_of_votes_is_stored_as_a_whole_or_not_at_all(site: Site) -> None:
    ids = [await site.request() for _ in range(3)]
    votes = [{"request_id": each, "metric": "thumbs_up", "value": True, "id": each} for each in ids]
    for bad, status, param in [
        (votes[0] | {"value": 3, "id": "x"}, 400, "data[3].value"),
        (votes[0] | {"metric": "none", "id": "x"}, 400, "data[3].metric"),
        (votes[0] | {"request_id": "req_none", "id": "x"}, 404, "data[3].request_id"),
        (votes[0] | {"value": False}, 409, "data[3].id"),
    ]:
        reply = await site.client.post("/v1/feedback", json={"data": [*votes, bad]})
        assert (reply.status_code, reply.json()["error"]["param"]) == (status, param)
        assert await site.counted() == []
    reply = await site.client.post("/v1/feedback", json={"data": [*votes, votes[0]]})
    assert [each["replaced"] for each in reply.json()["data"]] == [False] * 4
    assert reply.json()["data"][0] == reply.json()["data"][3]
    assert len(await site.counted()) == 3


@pytest.mark.usefixtures("no_bookkeeper")
async def test_a_withdrawn_vote_does_not_count_and_may_be_cast_again(site: Site) -> None:
    request_id = await site.request()
    made = await site.vote(request_id=request_id, occurred_at=1_760_000_000)
    gone = await site.client.delete(f"/v1/feedback/{made['id']}")
    assert gone.json() == {"object": "feedback.deleted", "id": made["id"], "deleted": True}
    assert await site.counted() == []
    for reply in (
        await site.client.get(f"/v1/feedback/{made['id']}"),
        await site.client.delete(f"/v1/feedback/{made['id']}"),
    ):
        assert reply.status_code == 404
    assert (await site.client.get("/v1/feedback")).json()["data"] == []
    assert await site.vote(request_id=request_id, value=False, occurred_at=1_750_000_000) == made
    assert await site.counted() == [("thumbs_up", 0)]
    assert await site.events() == [(site.experiment_id, made["id"])] * 3


@pytest.mark.usefixtures("no_bookkeeper")
async def test_a_vote_before_any_row_of_its_request_is_taken_by_a_signed_id(site: Site, other: Site) -> None:
    key = await project_key(site)
    signed = signed_id(key, "req_" + "a" * 24)
    for field, text in [("completion_id", signed.replace("req_", "chatcmpl-")), ("request_id", signed)]:
        made = await site.vote(**{field: text})
        assert (await site.client.get(f"/v1/feedback/{made['id']}")).json()["request_id"] == "req_" + "a" * 24
    draft = await put_experiment(site.conn, site.key.project_id, "stopped")
    await site.vote(completion_id=signed.replace("req_", "cmpl-"), value=False)
    assert {each for each, _ in await site.events()} == {site.experiment_id, draft}
    reply = await other.client.post("/v1/feedback", json={"metric": "thumbs_up", "value": True, "request_id": signed})
    assert reply.status_code == 404, "a code of another project proves nothing"


@pytest.mark.usefixtures("no_bookkeeper")
async def test_a_vote_about_a_unit_waits_for_the_experiments_that_have_it(site: Site) -> None:
    key = await project_key(site)
    second = await put_experiment(site.conn, site.key.project_id)
    await put_unit(site.conn, second, unit_digest(key, "ann"))
    made = await site.vote(unit="ann", occurred_at=1_760_000_000.25)
    shown = (await site.client.get("/v1/feedback", params={"unit": "ann"})).json()["data"]
    assert [(each["unit_digest"], each["occurred_at"]) for each in shown] == [
        (unit_digest(key, "ann").hex(), 1_760_000_000.25)
    ]
    assert await site.events() == [(second, made["id"])]
    assert (await site.client.get("/v1/feedback", params={"unit": "bob"})).json()["data"] == []


async def test_lists_are_paged_and_filtered(site: Site) -> None:
    ids = [(await site.vote(request_id=await site.request(), source=source))["id"] for source in ("user", "judge") * 3]

    async def listed(**query: Any) -> list[str]:
        found, query = [], dict(query)
        while True:
            page = (await site.client.get("/v1/feedback", params=query)).json()
            found += [each["id"] for each in page["data"]]
            if not page["has_more"]:
                return found
            query["after"] = page["last_id"]

    assert await listed() == await listed(limit=2) == ids
    assert await listed(source="judge", limit=1) == ids[1::2]
    assert await listed(metric="stars") == []


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"metric": None}, "metric"),
    ({"metric": "none"}, "metric"),
    ({"metric": "\0"}, "metric"),
    ({"value": None}, "value"),
    ({"value": 1}, "value"),
    ({"value": "yes"}, "value"),
    ({"value": []}, "value"),
    ({"metric": "stars", "value": 0.5}, "value"),
    ({"metric": "stars", "value": 5.1}, "value"),
    ({"metric": "stars", "value": True}, "value"),
    ({"metric": "stars", "value": "3"}, "value"),
    ({"metric": "mood", "value": "odd"}, "value"),
    ({"metric": "mood", "value": 1}, "value"),
    ({"request_id": None}, "completion_id"),
    ({"unit": "ann"}, "unit"),
    ({"request_id": None, "unit": "ann"}, "occurred_at"),
    ({"occurred_at": -1}, "occurred_at"),
    ({"occurred_at": "now"}, "occurred_at"),
    ({"occurred_at": 4_000_000_000}, "occurred_at"),
    ({"id": ""}, "id"),
    ({"id": "x" * 65}, "id"),
    ({"source": "nobody"}, "source"),
    ({"comment": "x" * 2001}, "comment"),
    ({"surprise": 1}, "surprise"),
    ({"data": []}, "data"),
    ({"data": [{}]}, "data[0].metric"),
]


@pytest.mark.parametrize(("change", "param"), WRONG, ids=[f"{param}-{at}" for at, (_, param) in enumerate(WRONG)])
async def test_the_field_that_is_wrong_is_named(site: Site, change: dict[str, Any], param: str) -> None:
    body = {"request_id": await site.request(), "metric": "thumbs_up", "value": True} | change
    reply = await site.client.post(
        "/v1/feedback", json={name: value for name, value in body.items() if value is not None}
    )
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text
    assert await site.counted() == []


async def test_fields_beside_a_list_and_too_many_votes_are_refused(site: Site) -> None:
    vote = {"request_id": await site.request(), "metric": "thumbs_up", "value": True}
    for body, param in [({"data": [vote], "source": "judge"}, "source"), ({"data": [vote] * 1001}, "data")]:
        reply = await site.client.post("/v1/feedback", json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "source=x", "surprise=1", "unit=%00", "metric=a&metric=b"])
async def test_wrong_queries_are_refused_by_name(site: Site, query: str) -> None:
    reply = await site.client.get(f"/v1/feedback?{query}")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, query.split("=")[0])
