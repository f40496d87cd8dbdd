"""A tenant's judge over HTTP: it votes about many replies and people about some, and results show both."""

from __future__ import annotations

import datetime
import random

from gateway.db.pool import Database
from tests.gateway.evaluation.conftest import Site
from tests.gateway.experiments.books_rows import NOW, RunningExperiment, UnitRequest, keep_books, send, unit
from tests.installation.waiting import until

EARLIER = NOW - datetime.timedelta(hours=3)
NUM_UNITS, EVERY = 200, 5


_IS_COUNTED = """
    SELECT NOT EXISTS (SELECT FROM experiment_events WHERE experiment_id = $1)
       AND (SELECT count(*) FROM experiment_units WHERE experiment_id = $1 AND is_closed) = $2
"""


async def vote_as_people_and_a_judge(site: Site) -> list[bool]:
    """Send a judge's votes about replies of some hours ago and people's about some of them, and count all votes.

    Returns the judge's verdict on each reply. Units are in both arms by turns.
    """
    chance = random.Random(2)
    made = RunningExperiment(site.key.organization_id, site.key.project_id, site.experiment_id)
    ids = await send(site.conn, made, [UnitRequest(unit(n), n % 2, EARLIER) for n in range(NUM_UNITS)])
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

        async def is_counted() -> bool:
            await keep_books(database)  # unless the gateway does just now
            return bool(await site.conn.fetchval(_IS_COUNTED, site.experiment_id, NUM_UNITS))

        await until(is_counted, "the votes are not counted")
    return liked


async def test_a_judge_votes_about_every_reply_and_people_about_a_fifth(site: Site) -> None:
    liked = await vote_as_people_and_a_judge(site)
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
