"""A dump of the database, and a backup, hold no secret that opens anything, and no text of any request."""

from __future__ import annotations

import base64
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx

from gateway.cli import main
from gateway.domain.tenancy.totp import STEP_S, code_at
from gateway.postgres.dump import postgres_program, without_password
from tests.gateway.conftest import House, open_house
from tests.gateway.live import BASE
from tests.patience import PATIENCE_S

PROMPT = "zqxjkvwy the heron knows a secret"
PASSWORD = "correct horse battery staple"
BUCKET_SECRET = "the-secret-key-of-a-bucket"
ADMIN = "/v1/organization"
PRIVATE = (0o600, 0o700)


def store_prompt(house: House, client: httpx.Client) -> None:
    """Send a prompt in all ways that store it."""
    operator, tenant = ({"authorization": f"Bearer {key}"} for key in (house.operator_key, house.acme.key))
    project = f"{ADMIN}/projects/{house.acme.project_id}"
    assert client.post(project, json={"log_content_days": 7, "store_days": 7}, headers=operator).status_code == 200
    chat = {"model": BASE, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 50, "store": True}
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", chat),
        ("/v1/responses", {"model": BASE, "input": PROMPT, "max_output_tokens": 50}),
        ("/v1/conversations", {"items": [{"type": "message", "role": "user", "content": PROMPT}]}),
    ]
    for number, (path, body) in enumerate(bodies):
        reply = client.post(path, json=body, headers=tenant | {"idempotency-key": f"heron {number}"})
        assert reply.status_code == 200, reply.text
    file = {"file": ("a", PROMPT.encode() * 20)}
    reply = client.post("/v1/files", files=file, data={"purpose": "user_data"}, headers=tenant)
    assert reply.status_code == 200, reply.text


def make_secrets(house: House, client: httpx.Client) -> list[bytes]:
    """Make a user with an authenticator, a webhook and a delivery; return their secrets."""
    operator = {"authorization": f"Bearer {house.operator_key}"}

    def post(path: str, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        reply = client.post(path, json=body, headers=headers)
        assert reply.status_code == 200, reply.text
        made: dict[str, Any] = reply.json()
        return made

    post(f"{ADMIN}/users", {"email": "ann@example.com", "role": "owner", "password": PASSWORD}, operator)
    hook = post(f"{ADMIN}/webhooks", {"url": "https://example.com/hook"}, operator)["secret"]
    bucket = {"type": "s3", "bucket": "books", "access_key_id": "id", "secret_access_key": BUCKET_SECRET}
    delivery = {"name": "books", "kind": "costs", "format": "csv", "schedule": "monthly", "destination": bucket}
    post(f"{ADMIN}/deliveries", delivery, operator)
    login = post("/admin/v1/login", {"email": "ann@example.com", "password": PASSWORD}, {})
    csrf = {"x-csrf-token": login["csrf_token"]}
    seed = post("/admin/v1/totp", {"password": PASSWORD}, csrf)["secret"]
    code = code_at(base64.b32decode(seed), int(time.time()) // STEP_S)
    codes = post("/admin/v1/totp/confirm", {"code": code}, csrf)["recovery_codes"]
    raw = [base64.b32decode(seed), base64.b64decode(hook.removeprefix("whsec_"))]
    texts = [seed, hook, BUCKET_SECRET, PASSWORD, *codes, *client.cookies.values()]
    keys = [house.operator_key, house.acme.key, house.globex.key]
    return raw + [text.encode() for text in texts + keys] + [b"heron knows a secret", b"heron 0"]


def shapes(secret: bytes) -> list[bytes]:
    """Return the encodings of a secret's bytes in dumps and JSON."""
    return [secret, secret.hex().encode(), base64.b64encode(secret)[:-4]]


def plain_dump(dsn: str) -> bytes:
    """Return all content of a database as SQL text."""
    shown, password = without_password(dsn)
    command = [postgres_program("pg_dump"), f"--dbname={shown}"]
    done = subprocess.run(command, env={"PGPASSWORD": password or ""}, check=True, capture_output=True)
    return done.stdout


def plain_backup(folder: Path) -> dict[str, bytes]:
    """Return the content of each file of a backup, the database's as text."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    (name,) = [name for name, content in files.items() if content.startswith(b"PGDMP")]
    done = subprocess.run(
        [postgres_program("pg_restore"), "--file=-", str(folder / name)], check=True, capture_output=True
    )
    return files | {name: done.stdout}


def test_no_secret_and_no_word_is_in_a_dump_or_a_backup(module_dsn: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with open_house(module_dsn, data) as house, httpx.Client(base_url=house.url, timeout=PATIENCE_S) as client:
        store_prompt(house, client)
        secrets = make_secrets(house, client)
    backup = tmp_path / "backup"
    assert main(["backup", str(backup)], {"LORIKEET_DATA_DIR": str(data), "DATABASE_URL": module_dsn}) == 0
    kept = plain_backup(backup) | {"the database": plain_dump(module_dsn)}
    assert b"ann@example.com" in kept["the database"], "it has what it must have"
    found = [(name, secret) for name, content in kept.items() for secret in secrets
             if any(shape in content for shape in shapes(secret))]  # fmt: skip
    assert found == []
    modes = {str(path): stat.S_IMODE(path.stat().st_mode) for path in (backup, *backup.rglob("*"))}
    assert set(modes.values()) <= set(PRIVATE), modes
