"""Traffic equals the ledger's requests, at every width and level, with percentiles within a tenth."""

from __future__ import annotations

import datetime
import random
from typing import Any

import httpx
import pytest

from gateway.db.ledger.traffic import TTFT_FLOOR_MS, TrafficQuery, percentiles, traffic_sums
from gateway.db.pool import Database
from tests.gateway.admin_server import AdminServer, serve_admin
from tests.gateway.billing.books import Books, open_books

START = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
DAYS = 3

_LEDGER = """
    SELECT date_trunc($1, created_at, 'UTC'), project_id, model, coalesce(adapter_id, ''), coalesce(adapter_version, 0),
           count(*) FILTER (WHERE counts_as_request(kind, revision, request_id)),
           sum(prompt_tokens)::bigint, sum(cached_tokens)::bigint, sum(completion_tokens)::bigint,
           sum(cost_nanos)::bigint
    FROM ledger GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
"""
_ROLLUPS = """
    SELECT bucket, project_id, model, adapter_id, adapter_version, num_requests, prompt_tokens, cached_tokens,
           completion_tokens, cost_nanos::bigint
    FROM traffic_rollups WHERE width = $1 AND level = 'full' ORDER BY 1, 2, 3, 4, 5
"""
_LEVELS = """
    SELECT level, width, sum(num_requests), sum(num_stop), sum(num_length), sum(num_cancelled), sum(num_errors),
           sum(num_refused), sum(prompt_tokens), sum(cost_nanos), sum((SELECT sum(c) FROM unnest(ttft_counts) c)),
           sum((SELECT sum(c) FROM unnest(tpot_counts) c))
    FROM traffic_rollups LEFT JOIN traffic_times
        USING (organization_id, level, width, bucket, project_id, model, adapter_id, adapter_version)
    GROUP BY 1, 2
"""
_ENDS = """
    SELECT finish_reason, count(*) FROM usage_attempts WHERE position('.' IN request_id) = 0 GROUP BY 1
"""


async def write_random_requests(books: Books, rng: random.Random, num: int) -> dict[str, list[float]]:
    """Write random requests, some with two prompts, some corrected late. Return the times to first token by model."""
    times: dict[str, list[float]] = {"tiny": [], "tiny:pirate": []}
    for batch in range(num // 50):
        events = []
        for number in range(50):
            model = rng.choice(list(times))
            ttft = rng.lognormvariate(4.0 if model == "tiny" else 7.0, 1.0)
            tokens = rng.randrange(1, 60)
            event = books.event(
                f"req_{books.project_id}_{batch}_{number}",
                created_at=START + datetime.timedelta(minutes=rng.randrange(DAYS * 1440)),
                model=model,
                adapter_id="adpt_x" if model == "tiny:pirate" else None,
                adapter_version=rng.randint(1, 2) if model == "tiny:pirate" else None,
                finish_reason=rng.choice(("stop", "stop", "length", "abort", "error", "refused")),
                completion_tokens=tokens,
                ttft_ms=ttft,
                latency_ms=ttft + 20.0 * (tokens - 1),
            )
            times[model].append(ttft)
            events.append(event)
        parts = [books.event(f"{each.request_id}.1", created_at=each.created_at) for each in events[:5]]
        await books.write(*events, *parts)
        late = [each for each in events if each.finish_reason == "error"][:3]
        await books.write(
            *(
                books.event(each.request_id, created_at=each.created_at, model=each.model, completion_tokens=99)
                for each in late
            )
        )
    return times


def exact_percentile(times: list[float], part: float) -> float:
    return sorted(times)[max(0, -(-len(times) * round(part * 100) // 100) - 1)]


async def test_roll_ups_equal_the_ledger_and_percentiles_are_within_a_tenth(books: Books) -> None:
    rng = random.Random(7)
    await books.set_prices()
    await books.backdate_prices(START - datetime.timedelta(days=1))
    times = await write_random_requests(books, rng, 1000)
    globex = await open_books(books.database, "globex")
    theirs = await write_random_requests(globex, rng, 200)
    await books.roll_up()
    for width in ("minute", "hour", "day"):
        assert await books.fetch(_ROLLUPS, width) == await books.fetch(_LEDGER, width)
    levels = await books.fetch(_LEVELS)
    assert len(levels) == 12 and len({sums[2:] for sums in levels}) == 1, "every level and width has the same sums"
    ends = dict(await books.fetch(_ENDS))
    names = ("stop", "length", "abort", "error", "refused")
    assert levels[0][2:8] == (1200, *(ends[name] for name in names))

    whole: dict[str, Any] = {
        "organization_id": books.organization_id,
        "width": "day",
        "start": START,
        "end": START + datetime.timedelta(days=DAYS),
        "whole": True,
    }
    async with books.database.acquire() as conn:
        by_model = await traffic_sums(conn, TrafficQuery(**whole, project_ids=[books.project_id], group_by=["model"]))
        (all_of_them,) = await traffic_sums(conn, TrafficQuery(**whole, project_ids=None))
    everyone = [time for each in (times, theirs) for found in each.values() for time in found]
    for sums, expected in [(all_of_them, everyone), *((each, times[str(each.model)]) for each in by_model)]:
        assert sums.ttft_ms is not None and sums.tpot_ms is not None
        for part, shown in ((0.5, sums.ttft_ms.p50), (0.9, sums.ttft_ms.p90), (0.99, sums.ttft_ms.p99)):
            assert shown == pytest.approx(exact_percentile(expected, part), rel=0.1), (sums.model, part)
        assert sums.tpot_ms.p50 == pytest.approx(20.0, rel=0.1)


@pytest.mark.parametrize(
    "reasons",
    [("error",), ("stop",), ("length",), ("abort",), ("refused",), ("error", "stop"), ("error", "refused")],
    ids="-".join,
)
async def test_an_attempt_that_is_superseded_later_counts_for_nothing(books: Books, reasons: tuple[str, ...]) -> None:
    for reason in (*reasons, "superseded"):
        await books.write(books.event("req_1", created_at=START, finish_reason=reason))
        await books.write(books.event("req_1.1", created_at=START, finish_reason=reason))
    await books.write(books.event("req_1", attempt=1, created_at=START, finish_reason="length"))
    await books.roll_up()
    levels = await books.fetch(_LEVELS)
    assert {sums[2:8] for sums in levels} == {(1, 0, 1, 0, 0, 0)}, "the attempt that took its place is all that counts"


async def test_the_buckets_of_the_schema_are_those_that_percentiles_read(books: Books) -> None:
    for ms in (0.2, 1.0, 1.5, 12.0, 80.0, 999.0, 30_000.0, 150_000.0):
        place = await books.value("SELECT time_bucket($1, $2)", ms, TTFT_FLOOR_MS)
        assert isinstance(place, int)
        found = percentiles([0] * place + [1] + [0] * (63 - place), TTFT_FLOOR_MS)
        assert found is not None and found.p50 == pytest.approx(max(ms, 1.0), rel=0.1001)
    assert await books.value("SELECT time_bucket($1, $2)", 1e9, TTFT_FLOOR_MS) == 63
    assert percentiles([0] * 64, TTFT_FLOOR_MS) is None


@pytest.fixture
async def server(database: Database, tmp_path: Any) -> Any:
    async with serve_admin(database, tmp_path / "server") as server:
        yield server


async def get_traffic(client: httpx.AsyncClient, path: str, **params: Any) -> dict[str, Any]:
    span = {"start_time": int(START.timestamp()), "end_time": int(START.timestamp()) + DAYS * 86_400}
    reply = await client.get(path, params=span | params)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def test_traffic_is_grouped_filtered_and_ranked_for_the_own_organization(
    books: Books, server: AdminServer
) -> None:
    globex = await open_books(books.database, "globex")
    pirate = {"model": "tiny:pirate", "adapter_id": "adpt_x", "adapter_version": 2}
    await books.write(
        books.event("req_1", created_at=START, ttft_ms=100.0, latency_ms=500.0),
        books.event("req_2", created_at=START, **pirate, finish_reason="error", api_key_id="key_b"),
        books.event("req_3", created_at=START + datetime.timedelta(days=1), finish_reason="abort"),
    )
    await globex.write(globex.event("req_4", created_at=START, prompt_tokens=5000))
    await books.roll_up()
    async with server.client(server.operator_key) as operator:
        first, second, third = (await get_traffic(operator, "/traffic"))["data"]
        (sums,) = first["results"]
        assert (sums["num_requests"], sums["num_errors"], sums["finish_reasons"]) == (3, 1, {"stop": 2, "error": 1})
        assert (second["results"][0]["num_cancelled"], third["results"]) == (1, [])
        grouped = (await get_traffic(operator, "/traffic", **{"group_by[]": ["model", "adapter_version"]}))["data"][0][
            "results"
        ]
        assert [(each["model"], each["adapter_version"]) for each in grouped] == [("tiny", None), ("tiny:pirate", 2)]
        only = (await get_traffic(operator, f"/projects/{books.project_id}/traffic", models="tiny"))["data"][0][
            "results"
        ]
        assert [(each["num_requests"], each["ttft_ms"]["p50"] > 90) for each in only] == [(1, True)]
        quick = await get_traffic(operator, f"/projects/{books.project_id}/traffic", models="tiny", times="false")
        assert quick["data"][0]["results"] == [only[0] | {"ttft_ms": None, "tpot_ms": None}]
        by_key = (await get_traffic(operator, "/traffic", group_by="api_key_id"))["data"][0]["results"]
        assert [(each["api_key_id"], each["num_requests"], each["ttft_ms"]) for each in by_key] == [
            ("key_a", 2, None),
            ("key_b", 1, None),
        ]
        top = (await get_traffic(operator, "/traffic/top", by="project_id", order="tokens"))["data"]
        quick = (await get_traffic(operator, "/traffic/top", by="project_id", order="tokens", times="false"))["data"]
        assert top[1]["ttft_ms"] is not None
        assert quick == [each | {"ttft_ms": None, "tpot_ms": None} for each in top]
        assert [(each["name"], each["num_requests"]) for each in top] == [("globex", 1), ("acme", 3)]
        top = (await get_traffic(operator, "/traffic/top", by="model", order="errors", limit=1))["data"]
        assert [(each["name"], each["num_errors"]) for each in top] == [("tiny:pirate", 1)]
        top = (
            await get_traffic(
                operator, "/traffic/top", by="model", **{"project_ids[]": books.project_id, "models[]": "tiny"}
            )
        )["data"]
        assert [(each["name"], each["num_requests"]) for each in top] == [("tiny", 2)]
        wrong = [({"by": "user_id"}, "by"), ({"by": "model", "order": "x"}, "order")]
        wrong += [({"by": "api_key_id", "order": "errors"}, "order")]
        wrong += [({"by": "model", "order": "errors", "api_key_ids": "key_a"}, "order")]
        wrong += [({"by": "model", "times": "yes", "end_time": "60"}, "times")]
        for params, param in wrong:
            reply = await operator.get("/traffic/top", params={"start_time": 0, **params})
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
        user = await server.user("ann@acme.example.com", None)
        await operator.post(f"/projects/{books.project_id}/users", json={"user_id": user["id"], "role": "viewer"})
    async with server.person("ann@acme.example.com") as ann:
        mine = await get_traffic(ann, "/traffic")
        assert [each["num_requests"] for bucket in mine["data"] for each in bucket["results"]] == [2, 1]
        assert [each["id"] for each in (await get_traffic(ann, "/traffic/top", by="project_id"))["data"]] == [
            books.project_id
        ]
        theirs = await get_traffic(ann, "/traffic", **{"project_ids[]": globex.project_id})
        assert all(bucket["results"] == [] for bucket in theirs["data"])


HOUR_S, DAY_S = 3600, 86_400


async def test_ranked_sums_equal_the_sums_of_the_buckets(books: Books, server: AdminServer) -> None:
    """Compare ranks with buckets in random ranges and in those that the dashboard asks for, up to the present.

    The dashboard asks for minutes of an hour, minutes from a whole hour on, hours of two days, hours from a whole day
    on, and days.
    """
    start = int(START.timestamp())
    await write_random_requests(books, random.Random(3), 1000)
    await books.roll_up()
    ranges = [
        ("1m", start + DAY_S - 1800, start + DAY_S + 1800, 60),
        ("1m", start + 66 * HOUR_S, start + 72 * HOUR_S + 300, 1440),
        ("1h", start + 7 * HOUR_S, start + 67 * HOUR_S, 168),
        ("1h", start, start + 77 * HOUR_S, 168),
        ("1d", start, start + DAYS * DAY_S, 31),
    ]
    async with server.client(server.operator_key) as operator:
        for width, since, until, limit in ranges:
            span = {"start_time": since, "end_time": until}
            page = await get_traffic(operator, "/traffic", **span, bucket_width=width, limit=limit)
            found = sum(each["num_requests"] for bucket in page["data"] for each in bucket["results"])
            ranked = (await get_traffic(operator, "/traffic/top", **span, by="model"))["data"]
            assert sum(each["num_requests"] for each in ranked) == found > 0, width
