"""E-mail addresses and webhooks' URLs are plain text, wherever they are shown or sent later."""

from __future__ import annotations

import httpx
import pytest

REFUSED = ["<b>", "a b", "tab\t", "line\n", "nul\0", "\u202e", "\u3000", '"', "`", "\\", "'<script>"]


@pytest.mark.parametrize(
    ("path", "param", "form"),
    [("/users", "email", "ann{}@example.com"), ("/webhooks", "url", "https://example.com/{}/hook")],
)
async def test_markup_and_spaces_are_refused_by_the_fields_name(
    operator: httpx.AsyncClient, path: str, param: str, form: str
) -> None:
    for part in REFUSED:
        reply = await operator.post(path, json={param: form.format(part)})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text
    assert (await operator.get(path)).json()["data"] == []


async def test_what_people_have_is_taken_as_it_is(operator: httpx.AsyncClient) -> None:
    for email in ("o'neil+lora@sub.example.com", "a_b-c.d%e@x.io", "{x}|~!#$&*/=?^@localhost"):
        assert (await operator.post("/users", json={"email": email})).json()["email"] == email
    for url in ("https://münchen.example/hook?a=b&c=%20#x", "http://example.com:8080/('{x}')/ä"):
        assert (await operator.post("/webhooks", json={"url": url})).json()["url"] == url


@pytest.mark.parametrize("email", ["", " ", "ann", "nul\0@example.com"])
async def test_a_filter_by_what_is_no_address_is_refused(operator: httpx.AsyncClient, email: str) -> None:
    """An ignored filter would answer with all people."""
    await operator.post("/users", json={"email": "ann@example.com"})
    reply = await operator.get("/users", params={"email": email})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "email"), reply.text
    assert len((await operator.get("/users", params={"email": "ANN@example.com"})).json()["data"]) == 1
