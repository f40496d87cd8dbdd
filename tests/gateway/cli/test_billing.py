"""Prices, credits, adjustments, usage, costs, periods and invoices from the command line."""

from __future__ import annotations

import datetime
import stat
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.db.pool import Database
from tests.gateway.billing.books import MILLION, THIS_MONTH, Books, instant_in, month_before
from tests.gateway.cli.conftest import Cli

LAST = month_before(THIS_MONTH)


@pytest.fixture
async def acme(lorikeet: Cli, database: Database) -> Books:
    """Return the books of a tenant with prices and usage of the last month."""
    made = await lorikeet.json("tenant", "create", "acme")
    async with database.acquire() as conn:
        organization_id = await conn.fetchval("SELECT organization_id FROM projects WHERE id = $1", made["id"])
    books = Books(database, organization_id, made["id"])
    await lorikeet.json("price", "set", "--input", "3", "--cached-input", "1", "--output", "7")
    await books.backdate_prices(instant_in(LAST) - datetime.timedelta(days=5))
    await books.write(
        *(books.event(f"req_{number}", created_at=instant_in(LAST), prompt_tokens=MILLION) for number in range(2))
    )
    await books.roll_up()
    return books


async def test_a_change_of_prices_is_a_version_of_all_of_them(lorikeet: Cli, acme: Books) -> None:
    second = await lorikeet.json("price", "set", "--model", "tiny", "--input", "0.000000001", "--output", "0")
    assert second["version"] == 2
    assert [(each["model"], each["input_nanos_per_million"]) for each in second["entries"]] == [
        ("*", 3 * 10**9),
        ("tiny", 1),
    ]
    third = await lorikeet.json("price", "set", "--discount", "acme=12.5", "--effective", "2099-01-01")
    assert third["discounts"] == [{"project_id": acme.project_id, "basis_points": 1250}]
    code, _, err = await lorikeet("price", "set", "--discount", "acme=0")
    assert (code, "it must follow version 3" in err) == (1, True)
    fourth = await lorikeet.json("price", "set", "--model", "tiny", "--remove", "--effective", "2099-01-02")
    assert [each["model"] for each in fourth["entries"]] == ["*"]
    code, out, _ = await lorikeet("price", "list")
    assert (code, len(out.splitlines())) == (0, 1 + 2 + 3 + 2 + 1)


async def test_prices_that_are_not_in_force_yet_can_be_withdrawn(lorikeet: Cli, acme: Books) -> None:
    code, out, _ = await lorikeet("price", "set", "--input", "9", "--output", "9", "--effective", "2099-01-01")
    assert (code, "which will be in force from 2099-01-01" in out) == (0, True)
    code, _, err = await lorikeet("price", "set", "--input", "8", "--output", "8")
    assert (code, "which will be in force from 2099-01-01 00:00:00 UTC; withdraw that one first" in err) == (1, True)
    assert (await lorikeet("price", "withdraw", "2"))[:2] == (0, "version 2 is withdrawn\n")
    code, _, err = await lorikeet("price", "withdraw", "1")
    assert (code, "is in force" in err) == (1, True)
    soon = await lorikeet.json("price", "set", "--input", "8", "--output", "8")
    assert soon["version"] == 2
    stored = await acme.value("SELECT extract(epoch FROM effective_at)::text FROM price_versions WHERE version = 2")
    assert float(str(stored)) == soon["effective_at"], "what is shown is when it is"
    code, _, err = await lorikeet("price", "withdraw", "7")
    assert (code, "there is no version 7" in err) == (1, True)


async def test_setting_a_price_warns_of_an_unknown_model_and_removing_names_the_entry(
    lorikeet: Cli, acme: Books
) -> None:
    code, _, err = await lorikeet("price", "set", "--model", "tony", "--input", "1", "--output", "1")
    assert (code, "no model 'tony' is served here, only 'tiny'" in err) == (0, True)
    code, out, _ = await lorikeet("price", "set", "--model", "*", "--remove", "--effective", "2099-01-01")
    assert (code, "removed --model * --adapter-class * --tier * (input 3.00, output 7.00)" in out) == (0, True)


async def test_a_price_for_a_pool_of_other_servers_is_set_without_a_warning(lorikeet: Cli, acme: Books) -> None:
    servers = ("--engine", "openai", "--url", "http://198.51.100.7", "--set", "allow_private=true")
    await lorikeet.json("pool", "create", "theirs", *servers)
    code, _, err = await lorikeet("price", "set", "--model", "theirs", "--input", "1", "--output", "1")
    assert (code, err) == (0, "")


async def test_usage_and_costs_are_shown(lorikeet: Cli, acme: Books) -> None:
    since = LAST.isoformat()
    (bucket,) = await lorikeet.json("usage", "--since", since, "--tenant", "acme")
    assert bucket["results"][0]["num_model_requests"] == 2
    code, out, _ = await lorikeet("usage", "--since", since, "--by", "model")
    assert (code, out.splitlines()[1].split()[2:]) == (0, ["tiny", "2", "2000000", "8", "10"])
    code, _, err = await lorikeet("costs", "--since", "2099-01-01")
    assert (code, "--since: the start must be before now" in err) == (2, True)
    code, out, _ = await lorikeet("costs", "--since", since)
    assert code == 0 and "acme    tiny, output" in out and "0.00007 usd" in out


async def test_a_month_is_closed_invoiced_and_printed(lorikeet: Cli, acme: Books, tmp_path: Path) -> None:
    month = f"{LAST:%Y-%m}"
    await lorikeet.json("credit", "grant", "--tenant", "acme", "--amount", "1.50", "--reason", "welcome")
    await lorikeet.done("tenant", "create", "globex")
    await lorikeet.done("stripe-customer", "globex", "cus_globex")
    code, _, err = await lorikeet("invoice", "issue", "--period", month)
    assert (code, "Close the month first" in err) == (1, True)
    code, out, err = await lorikeet("period", "close", month)
    assert (code, out.split()[-1], "Stripe will bill to nobody" in err and err.endswith(": acme\n")) == (0, "usd", True)
    assert (await lorikeet("period", "close", month))[:2] == (code, out)
    (issued,) = await lorikeet.json("invoice", "issue", "--period", month)
    assert await lorikeet.json("invoice", "show", "--period", month, "--tenant", "acme") == issued
    assert issued["credit_nanos"] == 1_500_000_000
    code, out, _ = await lorikeet("invoice", "show", "--period", month)
    assert (code, out.splitlines()[1].split()[:2]) == (0, [f"{month}-0001", "acme"])
    page = tmp_path / "invoice.html"
    code, _, _ = await lorikeet(
        "invoice", "show", "--period", month, "--tenant", "acme", "--format", "html", "--out", str(page)
    )
    assert (code, f"{month}-0001" in page.read_text()) == (0, True)
    assert stat.S_IMODE(page.stat().st_mode) == 0o600, "nobody else reads what a customer pays"
    html = ("--tenant", "acme", "--format", "html", "--out")
    code, _, err = await lorikeet("invoice", "show", "--period", month, *html, str(page))
    assert (code, err) == (1, f"lorikeet: {page} exists already: --force replaces it\n")
    assert await lorikeet.done("invoice", "show", "--period", month, *html, "-") == page.read_text()
    await lorikeet.done("invoice", "show", "--period", month, *html, str(page), "--force")
    code, _, err = await lorikeet("invoice", "show", "--period", month, *html, str(tmp_path / "nowhere" / "x.html"))
    assert (code, "No such file or directory" in err, err.count("\n")) == (1, True, 1)
    code, _, err = await lorikeet("invoice", "show", "--period", "2001-01", "--tenant", "acme")
    assert (code, "There is no billing period 2001-01. The billing periods are" in err) == (1, True)
    refund = await lorikeet.json(
        "adjustment", "add", "--tenant", "acme", "--refund", "0.5", "--reason", "outage", "--corrects-request", "req_1"
    )
    assert (refund["cost_nanos"], refund["corrects_period"]) == (-500_000_000, month)
    states = {each["id"]: each["state"] for each in await lorikeet.json("period", "list")}
    assert states == {month: "invoiced", f"{THIS_MONTH:%Y-%m}": "open"}


async def test_a_tenant_is_switched_to_prepaid_and_back(lorikeet: Cli, acme: Books) -> None:
    await lorikeet.json("credit", "grant", "--tenant", "acme", "--amount", "100", "--reason", "paid")
    billing = await lorikeet.json("credit", "mode", "--tenant", "acme", "prepaid")
    assert billing["mode"] == "prepaid" and 0 < billing["balance_nanos"] < 100 * 10**9
    (limit,) = await lorikeet.json("limit", "list", "--tenant", "acme")
    assert limit["id"] == billing["limit_id"]
    assert round(limit["free"] * 10**9) == billing["balance_nanos"]
    code, _, err = await lorikeet("limit", "remove", "--tenant", "acme", "--unit", "cost")
    assert (code, "balance of a prepaid project" in err) == (1, True)
    code, out, _ = await lorikeet("credit", "list", "--tenant", "acme")
    assert (code, out.splitlines()[-1].split()[0]) == (0, "prepaid,")
    assert (await lorikeet.json("credit", "mode", "--tenant", "acme", "postpaid"))["limit_id"] is None


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("price set --input -1", "from 0 to 1000000"),
        ("price set --input 9999999999", "from 0 to 1000000"),
        ("price set --input 0.0000000001", "nine decimals"),
        ("price set --effective soon", "a date or a time"),
        ("price set", "give --input and --output"),
        ("price set --remove", "name the entry with --model, --adapter-class, --tier"),
        ("price set --tier gold --input 1 --output 1", "--tier: expected default, flex, priority, batch"),
        ("price set --adapter-class a/b --input 1 --output 1", "letters, digits"),
        ("price set --input 1 --cached-input 2 --output 1", "the price must not be higher than the price of --input"),
        ("price set --discount initech", "--discount: expected TENANT=PERCENT"),
        ("price set --discount initech=150", "a percentage from 0 to 100"),
        ("credit grant --tenant acme --reason x --amount nan", "must be an amount"),
        ("credit grant --tenant acme --reason x --amount 1e9", "to 100000000 with"),
        ("adjustment add --tenant acme --reason x --charge 1 --refund 1", "not allowed with"),
        ("limit set --tenant acme --unit cost --max 9999999999", "from 0 to 4611686018 of cost"),
        ("delivery set x --folder y --kind foo", "choose from"),
        ("stripe-customer acme acme", "begins with cus_"),
        ("reconcile --write-off journal_x", "go together"),
        ("usage --embeddings --by service_tier", "--by service_tier: embeddings have no service tiers"),
        ("export usage --period foo", "expected a month such as 2026-10"),
        ("export usage --period 2025-10 --format focus", "--format: expected csv"),
        ("export invoice --period 2025-10-01", "a whole month"),
    ],
)
def test_wrong_usage_exits_2_and_says_why(words: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(words.split(), {})
    except SystemExit as left:
        code = int(str(left.code))
    assert (code, why in capsys.readouterr().err) == (2, True)
