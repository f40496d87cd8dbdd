"""Secrets are rotated by the commands of deploy/ROTATION.md while requests come, and no request fails."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import httpx
import msgspec
import pytest
import trustme

from gateway.db.content.sealed import newest_sealed
from gateway.domain.content.keys import ContentKey, parse_keys
from gateway.support.cipher import Cipher, Place, Sealed
from tests.deploy.balancers import Balancer, program
from tests.deploy.client import Client
from tests.deploy.commands import CommandOutcome, lorikeet
from tests.deploy.gateways import OwnPort
from tests.deploy.test_upgrade import answers, check, site_of, under_load
from tests.drills.ground import Ground, running_ground
from tests.drills.traffic import Traffic
from tests.gateway.observability.tracing.collector import Collector, running_collector
from tests.installation.databases import execute
from tests.installation.tenants import Key, make_operator_key
from tests.installation.waiting import wait_until
from tests.patience import PATIENCE_S

OLD, NEW = (ContentKey(letter * 32) for letter in (b"o", b"n"))
FORMER_PASSWORD, LATTER_PASSWORD = "the former one of Ann", "the latter one of Ann"
GRACE_S = 2
LOAD_SHARE = 0.5
"""The share of the engines' capacity that the load takes."""

RELOADS_S = 90.0
"""Seconds for which a proxy's certificate is replaced again and again: longer than the longest stream lasts."""

NUM_BETWEEN = 4
"""The number of answers to wait for between two rotations."""


def text_of(*keys: ContentKey) -> str:
    """Return content keys in the form that LORIKEET_CONTENT_KEY has."""
    return ",".join(base64.b64encode(key.secret).decode() for key in keys)


class Operator:
    """An operator who rotates secrets of an installation under load, with a key for the admin API."""

    def __init__(self, ground: Ground, traffic: Traffic, collector: Collector) -> None:
        self.ground = ground
        self.traffic = traffic
        self.collector = collector
        self.dsn = ground.postgres.dsn
        self.admin_key = asyncio.run(make_operator_key(self.dsn))
        self.former_key: Key | None = None
        """The tenant's API key before its rotation, which works for GRACE_S longer."""

    def run(self, *words: str, stdin: str = "", **environ: str) -> CommandOutcome:
        environ = {"LORIKEET_URL": self.ground.gateways[0].url, "LORIKEET_ADMIN_KEY": self.admin_key} | environ
        return lorikeet({"LORIKEET_DATA_DIR": str(self.ground.folder)} | environ, *words, stdin=stdin)

    def lorikeet(self, *words: str, stdin: str = "", **environ: str) -> Any:
        """Run a command that succeeds, and return its JSON."""
        done = self.run(*words, "--json", stdin=stdin, **environ)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def roll(self, *, dsn: str | None = None, **fields: object) -> None:
        """Replace the gateways one after the other by gateways with changed settings.

        dsn: another connection string; None: the same. fields: settings that change.
        """
        for gateway in self.ground.gateways:
            gateway.change(dsn=dsn, **fields)
            assert gateway.terminate() == 0
            gateway.start()
            gateway.wait_ready()
            self.traffic.more_answers(1)

    def dsn_of_role(self, role: str, password: str) -> str:
        """Return the connection string of another database role."""
        parts = urlsplit(self.dsn)
        return urlunsplit(parts._replace(netloc=f"{role}:{password}@{parts.hostname or ''}"))


def rotate_operators_key(operator: Operator) -> None:
    former = operator.admin_key
    operator.admin_key = operator.lorikeet("admin-key", "create", "--name", "second")["key"]
    (former_id,) = [key["id"] for key in operator.lorikeet("admin-key", "list") if key["name"] == "operator"]
    operator.lorikeet("admin-key", "revoke", former_id)
    wait_until(lambda: operator.run("tenant", "list", LORIKEET_ADMIN_KEY=former).returncode == 1, "it still opens")


def rotate_api_key(operator: Operator) -> None:
    key = operator.ground.world.key
    rotated = operator.lorikeet("key", "rotate", key.id, "--grace", str(GRACE_S))
    operator.ground.world.key = msgspec.structs.replace(key, secret=rotated["key"])
    operator.former_key = key


def rotate_content_key_and_role_of_gateways(operator: Operator) -> None:
    """Rotate the content key and the gateways' database role together, since each needs a restart of gateways."""
    for role, keys in (("lorikeet_first", (OLD, NEW)), ("lorikeet_second", (NEW, OLD))):
        asyncio.run(execute(operator.dsn, f"CREATE ROLE {role} LOGIN PASSWORD '{role}'"))
        dsn = operator.dsn_of_role(role, role)
        operator.lorikeet("migrate", DATABASE_URL=dsn, LORIKEET_DATABASE_OWNER_URL=operator.dsn)
        operator.roll(dsn=dsn, content_key=text_of(*keys))
    asyncio.run(execute(operator.dsn, "DROP OWNED BY lorikeet_first"))
    asyncio.run(execute(operator.dsn, "DROP ROLE lorikeet_first"))
    wait_until(lambda: not _sealed_with(operator.dsn, OLD), "secrets are not encrypted anew")
    operator.roll(content_key=text_of(NEW))
    assert asyncio.run(_num_opened(operator.dsn, text_of(NEW))) > 0


def rotate_webhooks_secret(operator: Operator) -> None:
    (webhook,) = operator.lorikeet("webhook", "list")
    rotated = operator.lorikeet("webhook", "rotate", webhook["id"], "--grace", "60")
    assert rotated["secret"].startswith("whsec_") and rotated["previous_secret_expires_at"]


def rotate_owners_password(operator: Operator) -> None:
    owner, former = urlsplit(operator.dsn).username, urlsplit(operator.dsn).password
    assert owner is not None
    asyncio.run(execute(operator.dsn, f"ALTER ROLE {owner} PASSWORD 'changed'"))
    changed = operator.dsn_of_role(owner, "changed")
    operator.lorikeet("migrate", DATABASE_URL=changed)
    asyncio.run(execute(changed, f"ALTER ROLE {owner} PASSWORD '{former}'"))


def rotate_collectors_headers(operator: Operator) -> None:
    """Replace the token that gateways send to the collector, which accepts any token."""
    tokens = operator.collector.headers
    wait_until(lambda: tokens and tokens[-1]["authorization"] == "Bearer former", "no traces come")
    operator.roll(traces_headers="authorization=Bearer%20latter")
    num_former = len(tokens)
    wait_until(lambda: len(tokens) > num_former, "no traces come with the new token")
    assert {each["authorization"] for each in tokens[num_former:]} == {"Bearer latter"}, "the old one may end"


def rotate_peoples_passwords(operator: Operator) -> None:
    url, email = operator.ground.gateways[0].url, "ann@example.com"

    def log_in(password: str) -> httpx.Response:
        body = {"email": email, "password": password}
        return httpx.post(f"{url}/admin/v1/login", json=body, timeout=PATIENCE_S)

    def list_projects(cookies: httpx.Cookies) -> int:
        return httpx.get(f"{url}/v1/organization/projects", cookies=cookies, timeout=PATIENCE_S).status_code

    of_ann = ("--email", email)
    operator.lorikeet("user", "create", *of_ann, "--role", "owner", "--password-stdin", stdin=f"{FORMER_PASSWORD}\n")
    cookies = log_in(FORMER_PASSWORD).cookies
    assert list_projects(cookies) == httpx.codes.OK
    operator.lorikeet("user", "reset", *of_ann, "--password-stdin", stdin=f"{LATTER_PASSWORD}\n")
    operator.lorikeet("user", "logins", "revoke", *of_ann)
    assert list_projects(cookies) == httpx.codes.UNAUTHORIZED
    replies = [log_in(password).status_code for password in (FORMER_PASSWORD, LATTER_PASSWORD)]
    assert replies == [httpx.codes.UNAUTHORIZED, httpx.codes.OK]


ROTATIONS: tuple[Callable[[Operator], None], ...] = (
    rotate_operators_key,
    rotate_api_key,
    rotate_content_key_and_role_of_gateways,
    rotate_webhooks_secret,
    rotate_owners_password,
    rotate_collectors_headers,
    rotate_peoples_passwords,
)


def test_no_request_fails_while_secrets_are_rotated(open_folder: Path) -> None:
    folder = open_folder / "rotation"
    folder.mkdir()
    changes = {
        "lame_duck_seconds": 0.5,
        "content_key": text_of(OLD),
        "traces_headers": "authorization=Bearer%20former",
    }
    with (
        running_collector() as collector,
        running_ground(folder, changes=changes | {"traces_url": collector.url}) as ground,
    ):
        asyncio.run(ground.warm_up())
        with ground.traffic(LOAD_SHARE) as traffic:
            operator = Operator(ground, traffic, collector)
            operator.lorikeet("webhook", "add", "https://example.com/hook")
            for rotate in ROTATIONS:
                rotate(operator)
                traffic.more_answers(NUM_BETWEEN)
                assert set(traffic.outcomes()) == {"answered"}, (rotate.__name__, traffic.outcomes())
        ground.check()
        assert set(traffic.outcomes()) == {"answered"} and traffic.wrong == []
        former = operator.former_key
        assert former is not None
        url = f"{ground.gateways[0].url}/v1/models"
        wait_until(lambda: httpx.get(url, headers=former.headers).status_code == 401, "the former key still works")
        ground.settle()


def test_a_proxys_certificate_is_replaced_by_a_reload_under_load(open_folder: Path, full: bool) -> None:
    if not full:
        pytest.skip("make long-restore")
    if program("haproxy") is None:
        pytest.skip("haproxy is not installed")
    with site_of(open_folder / "certificates") as site:
        gateways = [OwnPort(site.settings, site.postgres.dsn, number) for number in range(2)]
        folder = open_folder / "certificates/balancer"
        balancer = Balancer("haproxy", folder, [gateway.port for gateway in gateways])
        try:
            for gateway in gateways:
                gateway.start()
            for gateway in gateways:
                gateway.wait_ready()
            balancer.start()
            wait_until(lambda: answers(balancer), balancer.output)
            # Its master begins anew once its worker has begun; a signal before that is lost.
            wait_until(lambda: "Loading success" in balancer.output(), balancer.output)

            def replace() -> None:
                new = trustme.CA().issue_cert("127.0.0.1", "localhost")
                new.private_key_and_cert_chain_pem.write_to_path(str(folder / "both.pem"))
                os.kill(balancer.pid, signal.SIGUSR2)  # as `systemctl reload haproxy` does
                served = ssl.PEM_cert_to_DER_cert(new.cert_chain_pems[0].bytes().decode())
                wait_until(lambda: _certificate(balancer.port) == served, balancer.output)

            outcomes = under_load(site, Client(balancer.port, tls=True), replace, RELOADS_S)
            balancer.check()
            assert [gateway.terminate() for gateway in gateways] == [0, 0]
        finally:
            balancer.kill()
            for gateway in gateways:
                gateway.close()
        check(site, outcomes)


def _certificate(port: int) -> bytes:
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port)))


def _sealed_with(dsn: str, key: ContentKey) -> bool:
    async def ask() -> bool:
        conn = await asyncpg.connect(dsn)
        try:
            return bool(await conn.fetchval("SELECT count(*) FROM webhooks WHERE content_key = $1", key.id))
        finally:
            await conn.close()

    return asyncio.run(ask())


async def _num_opened(dsn: str, keys: str) -> int:
    """Return the number of all encrypted values in the database, after opening each with these keys.

    Raises ContentUnreadable: when the keys do not open a value.
    """
    cipher, conn = Cipher(parse_keys(keys)), await asyncpg.connect(dsn)
    try:
        rows = await newest_sealed(conn, 1000)
    finally:
        await conn.close()
    for row in rows:
        cipher.open(Sealed(row.content_key, row.sealed), Place(row.project_id, row.name, row.id))
    return len(rows)
