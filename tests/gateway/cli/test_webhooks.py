"""`lorikeet webhook`: added with a secret that is shown once, listed, removed."""

from __future__ import annotations

from tests.gateway.cli.conftest import Cli

URL = "https://example.com/hook"


async def test_a_webhook_is_added_listed_and_removed(lorikeet: Cli) -> None:
    told = await lorikeet.json("webhook", "add", URL, "--event", "response.failed", "--event", "response.completed")
    assert told["events"] == ["response.failed", "response.completed"]
    await lorikeet.json("webhook", "remove", told["id"])
    made = await lorikeet.json("webhook", "add", URL)
    assert (made["url"], made["secret"][:6]) == (URL, "whsec_")
    code, out, err = await lorikeet("webhook", "add", URL)
    assert (code, out[:6], "signed with this secret" in err) == (0, "whsec_", True)
    listed = await lorikeet.json("webhook", "list")
    assert listed[0] == {field: value for field, value in made.items() if field != "secret"}
    code, out, _ = await lorikeet("webhook", "list")
    assert (code, out.splitlines()[0].split()[:2], len(out.splitlines())) == (0, ["ID", "URL"], 3)
    rotated = await lorikeet.json("webhook", "rotate", made["id"], "--grace", "60")
    assert rotated["secret"] != made["secret"] and rotated["previous_secret_expires_at"] > made["created_at"]
    code, out, _ = await lorikeet("webhook", "rotate", made["id"], "--grace", "0")
    assert (code, out[:6], out.strip() in (made["secret"], rotated["secret"])) == (0, "whsec_", False)
    assert await lorikeet.json("webhook", "remove", made["id"]) == {"id": made["id"], "removed": True}
    code, _, err = await lorikeet("webhook", "remove", made["id"])
    assert (code, err) == (1, f"lorikeet: There is no webhook with the id '{made['id']}'.\n")
    for wrong in ("http://xn--a/", "https://example.com/<script>"):
        code, _, err = await lorikeet("webhook", "add", wrong)
        assert (code, "Invalid value for 'url'" in err) == (1, True)
