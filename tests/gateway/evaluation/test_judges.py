"""A tenant's judge over HTTP: it votes about many replies and people about some, and results show both."""

from __future__ import annotations

import datetime
import random

from gateway.db.pool import Database
from tests.gateway.evaluation.conftest import Site
from tests.gateway.experiments.books_rows import NOW, Made, Sent, keep_books, send, unit

EARLIER = NOW - datetime.timedelta(hours=3)
NUM_UNITS, EVERY = 200, 5


async def test_a_judge_votes_about_every_reply_and_people_about_a_fifth(site: Site) -> None:
    chance = random.Random(2)
    made = Made(site.key.organization_id, site.key.project_id, site.experiment_id)
    ids = await send(site.conn, made, [Sent(unit(n), n % 2, EARLIER) for n in range(NUM_UNITS)])
    liked = [chance.random() < 0.6 for _ in ids]
    at = EARLIER.timestamp() + 60
    votes = [
        {"request_id": each, "metric": "thumbs_up", "value": likes, "source": source, "occurred_at": at}
        for n, (each, likes) in enumerate(zip(ids, liked, strict=True))
        for source in (("judge", "human") if n % EVERY == 0 else ("judge",))
    ]
    reply = await site.client.post("/v1/feedback", json={"data": votes})
    assert reply.status_code == 200 and len(reply.json()["data"]) == NUM_UNITS + NUM_UNITS // EVERY
    async with await Database.connect(site.house.dsn) as database:
        await keep_books(database)
    headers = {"authorization": f"Bearer {site.house.operator_key}"}
    path = f"/v1/organization/projects/{site.key.project_id}/experiments/{site.experiment_id}"
    found = (await site.client.get(f"{path}/results", headers=headers)).json()
    (judged,) = found["judged"]
    assert (judged["metric"], judged["role"], judged["arm"]) == ("thumbs_up", "primary", "warm")
    assert [judged[arm]["num_labelled"] for arm in ("control", "treatment")] == [20, 20]
    assert [judged[arm]["num_judged"] for arm in ("control", "treatment")] == [80, 80]
    means = [sum(liked[arm::2]) / 100 for arm in (0, 1)]
    assert abs(judged["control"]["mean"] - means[0]) < 0.05 and abs(judged["treatment"]["mean"] - means[1]) < 0.05
    widths = [judged[name]["high"] - judged[name]["low"] for name in ("interval", "interval_by_people")]
    assert widths[0] < widths[1]
    assert judged["interval"]["low"] < judged["effect"] < judged["interval"]["high"]
    assert "drawn at random" in judged["text"]
    (primary,) = [each for each in found["comparisons"] if each["metric"] == "thumbs_up"]
    assert [primary[arm]["n"] for arm in ("control", "treatment")] == [20, 20], "people alone"
    assert (await site.client.get(f"{path}/results", params={"metric": "thumbs_up"}, headers=headers)).json()["judged"]
