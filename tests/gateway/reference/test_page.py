"""The reference page describes every operation, loads nothing from elsewhere, and shows each reader the server's own
URL."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any, cast

import httpx
import msgspec
import pytest
from litestar import Litestar

from gateway.reference.openapi import document
from gateway.reference.page.page import page
from gateway.reference.page.rendering import CHUNK_BYTES, Rendered, chunks_of
from gateway.reference.page.routes import PageReply, made_once
from gateway.reference.page.snippets import BASE_URL, curl, python
from gateway.reference.page.types import type_words
from tests.gateway.conftest import House
from tests.gateway.live import BASE
from tests.patience import PATIENCE_S

VOID = {"meta", "link", "br"}


class ParsedPage(HTMLParser):
    """A parsed page: its ids, links and loading tags. Fails on tags that are not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.active: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self._open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name == "href":
                self.links.append(value or "")
            elif name in ("src", "style", "srcset") or name.startswith("on"):
                self.active.append(f"{tag} {name}")
        if tag in ("script", "style", "img", "iframe", "form", "object"):
            self.active.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


@pytest.fixture(scope="module")
def described(house: House) -> dict[str, Any]:
    assert house.gateway.app is not None
    return document(house.gateway.app)


@pytest.fixture(scope="module")
def parsed(described: dict[str, Any]) -> ParsedPage:
    return ParsedPage(page(described))


def test_every_operation_and_schema_has_its_place(described: dict[str, Any], parsed: ParsedPage) -> None:
    operations = {each["operationId"] for methods in described["paths"].values() for each in methods.values()}
    schemas = {f"schema-{name}" for name in described["components"]["schemas"]}
    assert operations | schemas <= set(parsed.ids)
    assert len(parsed.ids) == len(set(parsed.ids))


def test_every_link_leads_somewhere_here(parsed: ParsedPage) -> None:
    anchors = {f"#{each}" for each in parsed.ids}
    assert set(parsed.links) - anchors == {"/docs/style.css", "/openapi.json"}


def test_the_page_runs_no_script_and_loads_nothing(parsed: ParsedPage) -> None:
    assert parsed.active == []


def test_the_page_and_its_style_are_served_under_a_strict_policy(house: House) -> None:
    shown = httpx.get(f"{house.url}/docs", timeout=PATIENCE_S)
    assert (shown.status_code, shown.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = shown.headers["content-security-policy"]
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    style = httpx.get(f"{house.url}/docs/style.css", timeout=PATIENCE_S)
    assert (style.status_code, style.headers["content-type"].partition(";")[0]) == (200, "text/css")
    assert "url(" not in style.text and "@import" not in style.text


@pytest.mark.parametrize("host", ["api.example.com", "127.0.0.1:8080", "[::1]:8080"])
def test_examples_have_the_readers_own_url(house: House, host: str) -> None:
    shown = httpx.get(f"{house.url}/docs", headers={"host": host}, timeout=PATIENCE_S).text
    assert f"http://{host}/v1/chat/completions" in shown
    assert BASE_URL not in shown


@pytest.mark.parametrize("host", ["<script>alert(1)</script>", "evil.example/'\"", "a b"])
def test_a_malformed_host_is_not_repeated_on_the_page(house: House, host: str) -> None:
    shown = httpx.get(f"{house.url}/docs", headers={"host": host}, timeout=PATIENCE_S)
    assert host not in shown.text


def test_a_host_that_is_long_does_not_make_the_page_larger(house: House) -> None:
    name = ".".join(["a" * 63] * 4)[:253]
    usual = httpx.get(f"{house.url}/docs", headers={"host": "a"}, timeout=PATIENCE_S).text
    longest = httpx.get(f"{house.url}/docs", headers={"host": f"{name}:65535"}, timeout=PATIENCE_S).text
    too_long = httpx.get(f"{house.url}/docs", headers={"host": "a" * 60_000}, timeout=PATIENCE_S).text
    assert f"http://{name}:65535/v1/chat/completions" in longest
    assert BASE_URL in too_long and len(too_long) < len(usual) * 1.01


async def test_a_reader_who_does_not_read_holds_a_chunk_of_the_page(described: dict[str, Any]) -> None:
    text, sent = page(described), []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("the page waits for nothing")

    url = "http://api.example.com"
    await PageReply(chunks_of(text), url.encode())(cast("Any", {}), receive, send)
    bodies = [message["body"] for message in sent[1:]]
    assert b"".join(bodies).decode() == text.replace(BASE_URL, url)
    assert (b"content-length", str(sum(map(len, bodies))).encode()) in sent[0]["headers"]
    assert max(map(len, bodies)) < 3 * CHUNK_BYTES
    assert [message["more_body"] for message in sent[1:]] == [True] * (len(bodies) - 1) + [False]


def inference(described: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield path and operation of everything for which the page has an example in Python."""
    for path, methods in described["paths"].items():
        yield from ((path, each) for each in methods.values() if "x-client-method" in each)


def body_of(operation: dict[str, Any]) -> dict[str, Any] | None:
    example = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
    return None if example is None else example | {"model": f"{BASE}:pirate"}


def test_the_programs_that_it_shows_run(
    house: House, described: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", house.acme.key)
    shown = [python(each["x-client-method"], body_of(each)) for _, each in inference(described)]
    assert len(shown) >= 4
    for program in shown:
        exec(program.replace(BASE_URL, house.url), {})
    out = capsys.readouterr().out
    assert "ChatCompletion(" in out and "Completion(" in out and "Embedding(" in out and "Model(" in out


def test_the_commands_that_it_shows_run(house: House, described: dict[str, Any]) -> None:
    for path, operation in inference(described):
        body = body_of(operation)
        command = curl("GET" if body is None else "POST", path, operation, body, is_admin=False)
        done = subprocess.run(
            ["bash", "-c", f"{command} --silent --fail".replace(BASE_URL, house.url)],
            env=os.environ | {"OPENAI_API_KEY": house.acme.key},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0 and b'"object"' in done.stdout, command


async def test_requests_at_once_render_the_page_once() -> None:
    app, go_on = Litestar(openapi_config=None), asyncio.Event()
    calls: list[Litestar] = []

    async def make(app: Litestar) -> Rendered:
        calls.append(app)
        await go_on.wait()
        if len(calls) == 1:
            raise RuntimeError
        return Rendered(b"{}", [[b"page"]])

    rendered_of = made_once(make)
    for num_calls in (1, 2):
        asking = [asyncio.create_task(rendered_of(app)) for _ in range(8)]
        await asyncio.sleep(0)
        asking[0].cancel()
        go_on.set()
        answers = await asyncio.gather(*asking, return_exceptions=True)
        assert len(calls) == num_calls
        assert isinstance(answers[0], asyncio.CancelledError)
        assert {type(answer) for answer in answers[1:]} == {RuntimeError if num_calls == 1 else Rendered}
        go_on.clear()
    assert await rendered_of(app) == Rendered(b"{}", [[b"page"]])
    assert len(calls) == 2


def test_the_document_is_served_as_the_routes_declare_it(house: House, described: dict[str, Any]) -> None:
    shown = httpx.get(f"{house.url}/openapi.json", timeout=PATIENCE_S)
    assert shown.content == msgspec.json.encode(described)


def test_what_the_document_holds_is_only_ever_text(described: dict[str, Any]) -> None:
    hostile = "<script>x</script> `<b>` &amp;"
    described = described | {"info": described["info"] | {"description": hostile, "summary": hostile}}
    shown = page(described)
    assert "<script" not in shown and "<code>&lt;b&gt;</code>" in shown


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string", "minLength": 1, "maxLength": 512}, "text of 1 to 512 characters"),
        ({"type": "number", "minimum": 0, "maximum": 2}, "number, 0 to 2"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "number, over 0, up to 1"),
        ({"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}, '"a" or "b" or null'),
        (
            {"type": "array", "items": {"$ref": "#/components/schemas/Page_X_"}, "maxItems": 4},
            "list of up to 4, each Page of X",
        ),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "object of whole number"),
        ({}, "any JSON"),
    ],
)
def test_types_read_as_words(schema: dict[str, Any], text: str) -> None:
    assert re.sub(r"\s+", " ", "".join(word.text for word in type_words(schema))) == text
