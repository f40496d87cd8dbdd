"""`lorikeet export`, `delivery` and `stripe-customer` on the command line."""

from __future__ import annotations

import datetime
import hashlib
import json
import resource
from pathlib import Path

from gateway.db.pool import Database
from tests.gateway.cli.conftest import Cli
from tests.gateway.exports.ledger import BEFORE, FORMULA, MONTH, make_books

STRIPE = ("export", "usage", "--format", "stripe")
FOCUS = ("export", "costs", "--format", "focus")


async def test_an_export_is_written_beside_its_manifest(
    database: Database, dsn: str, lorikeet: Cli, tmp_path: Path
) -> None:
    books = await make_books(database, num_rows=100)
    _, _, err = await lorikeet(*STRIPE, "--out", str(tmp_path), "--period", BEFORE, DATABASE_URL=dsn)
    assert "Stripe will bill to nobody" in err and f"{FORMULA}, globex" in err
    _, out, _ = await lorikeet(*FOCUS, "--out", str(tmp_path), "--period", BEFORE, DATABASE_URL=dsn)
    assert ", of which credits paid 0.01818885: 0.0079424 is left" in out, "before and after credits"
    export = ("export", "usage", "--format", "parquet", "--out", str(tmp_path / "out"))
    code, out, err = await lorikeet(*export, "--period", BEFORE, DATABASE_URL=dsn)
    assert (code, err) == (0, "") and out.endswith("USD\n")
    manifest = json.loads((tmp_path / "out" / f"usage-{BEFORE}.parquet.manifest.json").read_bytes())
    content = (tmp_path / "out" / f"usage-{BEFORE}.parquet").read_bytes()
    assert manifest["files"][0]["sha256"] == hashlib.sha256(content).hexdigest()
    assert manifest["library"].startswith("pyarrow ") and manifest["num_rows"] == 50
    code, out, _ = await lorikeet(*export, "--period", MONTH, "--tenant", FORMULA, "--json", DATABASE_URL=dsn)
    shown = json.loads(out)
    assert (code, shown["state"], shown["project_id"]) == (0, "open", books.acme)


async def test_what_cannot_be_exported_is_refused_in_one_line(lorikeet: Cli, dsn: str, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "out"))
    for words, why in [
        (("usage", "--period", "2001-01"), "there is no 2001-01 in the books"),
        (("usage", "--period", "2099-01-01"), "there is no 2099-01-01 in the books"),
        (("usage", "--period", MONTH, "--tenant", "nobody"), "no tenant named 'nobody'"),
        (("usage", "--period", MONTH, "--organization", "nowhere"), "no organization named 'nowhere'"),
    ]:
        code, _, err = await lorikeet("export", *words, *out, DATABASE_URL=dsn)
        assert code == 1 and why in err and err.count("\n") == 1
    (tmp_path / "out").write_text("no folder")
    code, _, err = await lorikeet("export", "usage", "--period", MONTH, *out, DATABASE_URL=dsn)
    assert code == 1 and "out is not a folder" in err and err.count("\n") == 1
    assert (await lorikeet("export", "usage", "--period", MONTH))[0] == 3, "no database"


async def test_a_file_that_cannot_grow_is_not_a_lost_database(
    database: Database, dsn: str, lorikeet: Cli, tmp_path: Path
) -> None:
    await make_books(database, num_rows=100)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        code, _, err = await lorikeet(
            "export", "usage", "--period", BEFORE, "--out", str(tmp_path / "out"), DATABASE_URL=dsn
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (code, err) == (1, f"lorikeet: {tmp_path}/out/usage-{BEFORE}.csv: File too large\n")
    assert list((tmp_path / "out").iterdir()) == []


async def test_deliveries_are_set_listed_shown_and_removed(lorikeet: Cli, database: Database) -> None:
    async with database.acquire() as conn:
        organization = await conn.fetchval("SELECT id FROM organizations")
    bucket = ("--bucket", "books", "--prefix", "a/b", "--access-key-id", "AKIA")
    assert "AWS_SECRET_ACCESS_KEY is not set" in (await lorikeet("delivery", "set", "x", "--kind", "usage", *bucket))[2]
    code, out, _ = await lorikeet(
        "delivery", "set", "x", "--kind", "usage", *bucket, "--json", AWS_SECRET_ACCESS_KEY="very secret"
    )
    assert code == 0 and "very secret" not in out
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    daily = ("--schedule", "daily", "--from", today, "--folder", "finance")
    assert (await lorikeet("delivery", "set", "y", "--kind", "costs", "--format", "focus", *daily))[0] == 0
    first = (await lorikeet.json("delivery", "list"))[0]["from_period"]
    _, out, _ = await lorikeet("delivery", "list")
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["x", "usage", "csv", "monthly", first, "s3://books/a/b"],
        ["y", "costs", "focus", "daily", today, f"exports/{organization}/finance", "in", "the", "data", "folder"],
    ]
    assert f"exports/{organization}/finance in the data folder" in (await lorikeet("delivery", "show", "y"))[1]
    _, _, err = await lorikeet("delivery", "set", "z", "--kind", "costs", "--folder", "z", "--from", "1999-11")
    assert "'from_period': the organization's first month is" in err
    assert (await lorikeet.json("delivery", "show", "y"))["runs"] == []
    assert "no delivery named 'z'" in (await lorikeet("delivery", "remove", "z"))[2]
    assert (await lorikeet("delivery", "remove", "x"))[1] == "removed x\n"
    assert [row["name"] for row in await lorikeet.json("delivery", "list")] == ["y"]


async def test_a_tenant_has_a_customer_at_stripe_or_none(lorikeet: Cli) -> None:
    await lorikeet.done("tenant", "create", "acme")
    assert "has no customer" in (await lorikeet("stripe-customer", "acme"))[1]
    assert (await lorikeet("stripe-customer", "acme", "cus_Nci"))[1] == "cus_Nci\n"
    assert (await lorikeet.json("stripe-customer", "acme"))["customer_id"] == "cus_Nci"
    assert "has no customer" in (await lorikeet("stripe-customer", "acme", "--remove"))[1]
