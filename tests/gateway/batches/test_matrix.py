"""Each field of files and batches with values of every kind; every refusal names its field and code."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway.openai.batches.wire import CreateBatch
from gateway.openai.files.handler import FORM
from gateway.openai.files.wire import CompleteUpload, CreateUpload
from tests.gateway.batches.jobs import CHAT, chat_line, file_of
from tests.gateway.conftest import House
from tests.gateway.limits.fleet import Key
from tests.patience import PATIENCE_S

NO_FILE = f"file_{'a' * 24}"
BAD, TYPE = "invalid_value", "invalid_type"

BATCH: dict[str, list[tuple[Any, int, str | None, str | None]]] = {
    "input_file_id": [
        ("FILE", 200, None, None),
        (NO_FILE, 400, "input_file_id", BAD),
        ("USER_DATA", 400, "input_file_id", BAD),
        ("", 400, "input_file_id", BAD),
        (1, 400, "input_file_id", TYPE),
        (None, 400, "input_file_id", TYPE),
    ],
    "endpoint": [
        ("/v1/responses", 200, None, None),
        ("/v1/embeddings", 200, None, None),
        ("/v1/completions", 200, None, None),
        ("/v1/rerank", 200, None, None),
        ("/v2/rerank", 400, "endpoint", BAD),
        ("/v1/moderations", 400, "endpoint", BAD),
        (None, 400, "endpoint", TYPE),
        (1, 400, "endpoint", TYPE),
    ],
    "completion_window": [
        ("1h", 400, "completion_window", BAD),
        ("", 400, "completion_window", BAD),
        (24, 400, "completion_window", TYPE),
    ],
    "metadata": [
        ({"a": "b"}, 200, None, None),
        (None, 200, None, None),
        ({}, 200, None, None),
        ({"a": 1}, 400, "metadata", TYPE),
        ({str(n): "x" for n in range(17)}, 400, "metadata", BAD),
        ([], 400, "metadata", TYPE),
    ],
    "output_expires_after": [
        ({"anchor": "created_at", "seconds": 3600}, 200, None, None),
        (None, 200, None, None),
        ({"anchor": "created_at", "seconds": 3599}, 400, "output_expires_after", BAD),
        ({"anchor": "created_at", "seconds": 2_592_001}, 400, "output_expires_after", BAD),
        ({"anchor": "last_active_at", "seconds": 3600}, 400, "output_expires_after", BAD),
        ({"anchor": "created_at"}, 400, "output_expires_after", "missing_required_parameter"),
        ({"anchor": "created_at", "seconds": 3600, "x": 1}, 400, "output_expires_after", "unknown_parameter"),
        (3600, 400, "output_expires_after", TYPE),
    ],
    "color": [("red", 400, "color", "unknown_parameter")],
}
ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"
FILE: list[tuple[dict[str, str], str, bytes, int, str | None]] = [
    ({"purpose": "batch"}, "a.jsonl", b"{}", 200, None),
    ({"purpose": "user_data"}, "a.bin", b"\0", 200, None),
    ({"purpose": "batch", ANCHOR: "created_at", SECONDS: "3600"}, "a.jsonl", b"{}", 200, None),
    ({"purpose": "batch"}, "a.txt", b"{}", 400, "file"),
    ({"purpose": "batch"}, "a.jsonl", b"", 400, "file"),
    ({"purpose": "batch"}, "x" * 256 + ".jsonl", b"{}", 400, "file"),
    ({"purpose": "batch_output"}, "a.jsonl", b"{}", 400, "purpose"),
    ({"purpose": "nothing"}, "a.jsonl", b"{}", 400, "purpose"),
    ({}, "a.jsonl", b"{}", 400, "purpose"),
    ({"purpose": "batch", SECONDS: "3600"}, "a.jsonl", b"{}", 400, ANCHOR),
    ({"purpose": "batch", ANCHOR: "created_at"}, "a.jsonl", b"{}", 400, SECONDS),
    ({"purpose": "batch", ANCHOR: "x", SECONDS: "3600"}, "a.jsonl", b"{}", 400, ANCHOR),
    ({"purpose": "batch", ANCHOR: "created_at", SECONDS: "1e9"}, "a.jsonl", b"{}", 400, SECONDS),
    ({"purpose": "batch", "color": "red"}, "a.jsonl", b"{}", 400, "color"),
]
UPLOAD_GOOD: dict[str, Any] = {"filename": "a.jsonl", "purpose": "batch", "bytes": 2, "mime_type": "application/jsonl"}
UPLOAD: dict[str, list[tuple[Any, int]]] = {
    "filename": [("b.jsonl", 200), ("b.txt", 400), ("", 400), (1, 400), (None, 400)],
    "purpose": [("user_data", 200), ("nothing", 400), (None, 400)],
    "bytes": [(1, 200), (0, 400), (-1, 400), (2**60, 400), ("2", 400), (None, 400)],
    "mime_type": [("text/plain", 200), ("", 400), (None, 400)],
    "expires_after": [
        ({"anchor": "created_at", "seconds": 3600}, 200),
        (None, 200),
        ({"seconds": 3600}, 400),
        (1, 400),
    ],
    "color": [("red", 400)],
}
PATHS: list[tuple[str, str, str | None]] = [
    ("GET", "/v1/files?order=up", "order"),
    ("GET", "/v1/files?limit=0", "limit"),
    ("GET", f"/v1/files?after={NO_FILE}", "after"),
    ("GET", "/v1/batches?limit=101", "limit"),
    ("GET", "/v1/batches?after=batch_x", "after"),
    ("GET", "/v1/batches?color=red", "color"),
    *(
        (method, f"/v1/files/{NO_FILE}{rest}", "id")
        for method, rest in (("GET", ""), ("GET", "/content"), ("DELETE", ""))
    ),
    *(
        (method, f"/v1/batches/batch_{'a' * 24}{rest}", "batch_id")
        for method, rest in (("GET", ""), ("POST", "/cancel"))
    ),
    ("POST", "/v1/uploads/upload_x/cancel", None),
]


@pytest.fixture
def tenant_headers(tenant: Key) -> dict[str, str]:
    return tenant.headers


async def test_every_field_of_both_apis_is_honoured_or_refused_by_name(
    house: House, tenant_headers: dict[str, str]
) -> None:
    assert {*CreateBatch.__struct_fields__, "color"} == set(BATCH)
    assert {*CreateUpload.__struct_fields__, "color"} == set(UPLOAD)
    assert set(FORM.names) == {"file", "purpose", ANCHOR, SECONDS}
    assert CompleteUpload.__struct_fields__ == ("part_ids", "md5")
    wrong: list[str] = []

    def check(what: str, reply: httpx.Response, status: int, param: str | None, code: str | None = None) -> None:
        error = reply.json().get("error") or {}
        named = status == 200 or param is None or str(error.get("param")).startswith(param)
        if reply.status_code != status or not named or (code is not None and error.get("code") != code):
            wrong.append(f"{what}: {reply.status_code} {reply.text[:200]}")
        if status != 200 and (set(error) != {"message", "type", "param", "code"} or not error["message"]):
            wrong.append(f"{what}: {reply.text[:200]} is no error of OpenAI's shape")

    async with httpx.AsyncClient(base_url=house.url, headers=tenant_headers, timeout=PATIENCE_S) as client:

        async def stored(purpose: str) -> str:
            form = {"file": ("a.jsonl", file_of([chat_line("a") | {"url": "/none"}]))}
            return str((await client.post("/v1/files", files=form, data={"purpose": purpose})).json()["id"])

        ids = {"FILE": await stored("batch"), "USER_DATA": await stored("user_data")}
        good = {"input_file_id": ids["FILE"], "endpoint": CHAT, "completion_window": "24h"}
        for name, cases in BATCH.items():
            for value, status, param, code in cases:
                sent = ids.get(value, value) if isinstance(value, str) else value
                reply = await client.post("/v1/batches", json=good | {name: sent})
                check(f"batch {name}={json.dumps(value)[:60]}", reply, status, param, code)
            if name in ("input_file_id", "endpoint", "completion_window"):
                body = {each: value for each, value in good.items() if each != name}
                reply = await client.post("/v1/batches", json=body)
                check(f"batch without {name}", reply, 400, name, "missing_required_parameter")
        for fields, filename, content, status, param in FILE:
            reply = await client.post("/v1/files", files={"file": (filename, content)}, data=fields)
            check(f"file {fields} {filename[:12]}", reply, status, param)
        for name, pairs in UPLOAD.items():
            for value, status in pairs:
                reply = await client.post("/v1/uploads", json=UPLOAD_GOOD | {name: value})
                check(f"upload {name}={json.dumps(value)}", reply, status, name)
        for method, path, param in PATHS:
            reply = await client.request(method, path)
            check(f"{method} {path}", reply, 400 if "?" in path else 404, param)
    assert wrong == [], "\n".join(wrong)
