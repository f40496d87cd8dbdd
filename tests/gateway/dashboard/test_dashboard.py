"""The dashboard's files over HTTP: which are served, how they are cached, and what its pages may do."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterator

import httpx
import pytest

from gateway.dashboard.files import FOLDER
from tests.gateway.conftest import House
from tests.gateway.hostile import RawClient
from tests.patience import PATIENCE_S

VENDORED = FOLDER / "vendor" / "VENDORED.md"


@pytest.fixture
def client(house: House) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=house.url, timeout=PATIENCE_S) as client:
        yield client


@pytest.mark.parametrize(
    "path", ["/admin/", "/admin/tenants", "/admin/tenants/proj_x/keys", "/admin/adapters/proj_x/a.v2", "/admin/x.js/y"]
)
def test_every_view_is_the_one_page(client: httpx.Client, path: str) -> None:
    reply = client.get(path)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.text == (FOLDER / "index.html").read_text()


@pytest.mark.parametrize("path", ["/", "/admin"])
def test_short_addresses_lead_to_the_dashboard(client: httpx.Client, path: str) -> None:
    reply = client.get(path)
    assert (reply.status_code, reply.headers["location"]) == (302, "/admin/")


@pytest.mark.parametrize(
    "path", ["/", "/admin", "/admin/", "/admin/tenants", "/admin/main.js", "/docs", "/docs/style.css", "/openapi.json"]
)
async def test_head_answers_as_get_without_its_body(house: House, path: str) -> None:
    client = RawClient(house.gateway.port)
    head, get = [await client.send(method, path, {}) for method in ("HEAD", "GET")]
    assert head.status == get.status
    differ = {"x-request-id", "date", "openai-processing-ms"}
    assert {name: head.headers[name] for name in head.headers if name not in differ} == {
        name: get.headers[name] for name in get.headers if name not in differ
    }
    await client.close()


async def test_head_of_nothing_is_not_found(house: House) -> None:
    client = RawClient(house.gateway.port)
    for path in ("/admin/lib/none.js", "/admin/none.js", "/admin/v1/nothing"):
        assert [(await client.send(method, path, {})).status for method in ("HEAD", "GET")] == [404, 404]
    await client.close()


def test_pages_run_nothing_but_what_is_served_here(client: httpx.Client) -> None:
    headers = client.get("/admin/").headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    page = (FOLDER / "index.html").read_text()
    assert re.findall(r"<script(?![^>]* src=\"/admin/)|<style|\son\w+=|\sstyle=|https?://", page) == []


def test_unchanged_files_cost_no_transfer(client: httpx.Client) -> None:
    first = client.get("/admin/main.js")
    assert first.headers["content-type"] == "text/javascript; charset=utf-8"
    assert first.headers["cache-control"] == "no-cache"
    assert first.headers["content-encoding"] == "gzip"
    again = client.get("/admin/main.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    plain = client.get("/admin/main.js", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == first.content == (FOLDER / "main.js").read_bytes()
    assert plain.headers["etag"] != first.headers["etag"]


async def test_nothing_else_of_the_machine_is_served(house: House) -> None:
    client = RawClient(house.gateway.port)
    for path in (
        *("/admin/lib/../../pyproject.toml", "/admin/lib/..%2f..%2fpyproject.toml", "/admin/vendor/%2e%2e/README.md"),
        *("/admin/lib//etc/passwd", "/admin/lib/.hidden.js", "/admin/lib/none.js", "/admin/vendor/VENDORED.md"),
        *("/admin/none.js", "/admin/README.md", "/admin/biome.json"),
        *("/admin/v1/nothing", "/admin/v1/", "/admin/style/" + "x" * 5000 + ".css", "/admin/lib/%00.js"),
    ):
        reply = await client.send("GET", path, {})
        assert reply.status in (400, 404), path
        assert b"error" in reply.body, path
    # Paths outside of the folders of files are views, whatever their names.
    for path in ("/admin/tenants/README.md", "/admin/../pyproject.toml", "/admin/..%2fpyproject.toml"):
        reply = await client.send("GET", path, {"accept-encoding": "gzip"})
        if reply.status == 200:
            assert gzip.decompress(reply.body) == (FOLDER / "index.html").read_bytes(), path
    await client.close()


def test_vendored_files_are_those_that_were_published() -> None:
    rows = re.findall(r"\| ([\w.]+) \| [^|]+ \| ([0-9a-f]{64}) \|", VENDORED.read_text())
    assert {name: hashlib.sha256((VENDORED.parent / name).read_bytes()).hexdigest() for name, _ in rows} == dict(rows)
    assert {path.name for path in VENDORED.parent.iterdir()} == {name for name, _ in rows} | {VENDORED.name}


def test_modules_name_only_files_that_are_there() -> None:
    """A page whose module imports a missing file would fail only when somebody opens the page."""
    modules = [module for module in FOLDER.rglob("*.js") if module.parent.name != "vendor"]
    assert [
        f"{module.relative_to(FOLDER)}: {name}"
        for module in modules
        for name in re.findall(r"""(?:from|import) ["'](\.[^"']+)["']""", module.read_text())
        if not (module.parent / name).resolve().is_file()
    ] == []


def test_lines_of_modules_have_120_columns_but_for_sentences() -> None:
    """A formatter breaks lines of code, but not sentences in quotes, which may be longer."""
    modules = [module for module in FOLDER.rglob("*.js") if module.parent.name != "vendor"]
    assert [
        f"{module.relative_to(FOLDER)}:{number}"
        for module in modules
        for number, line in enumerate(module.read_text().splitlines(), 1)
        if len(line) > 120 and len(re.sub(r"""(["'`]).*?\1|`.*""", "", line)) > 120
    ] == []
