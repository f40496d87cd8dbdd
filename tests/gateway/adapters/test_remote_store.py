"""With a store in a bucket all operations work; while the bucket is away, nothing is lost and nothing dies."""

from __future__ import annotations

import http.client
from contextlib import closing
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from adapters.errors import StoreFailure
from adapters.stores import open_store
from gateway.db.pool import Database
from tests.gateway.admin_server import serve_admin, write_adapter
from tests.gateway.cli.conftest import Cli

CACHE_BYTES = 1 << 20


def start() -> ThreadedMotoServer:
    """Start an S3 server with a bucket."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    with closing(http.client.HTTPConnection(*server.get_host_and_port())) as connection:
        connection.request("PUT", "/bucket")
        assert connection.getresponse().status == 200
    return server


@pytest.mark.usefixtures("log_apart")
async def test_adapters_live_in_a_bucket(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = start()
    host, port = bucket.get_host_and_port()
    for name, value in (("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test"), ("REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    store = open_store("s3://bucket/adapters", tmp_path / "cache", CACHE_BYTES)
    folder, other = (str(write_adapter(tmp_path / str(seed), seed=seed)) for seed in (1, 2))
    async with serve_admin(database, tmp_path / "server", store=store) as server:
        environ = {"LORIKEET_DATA_DIR": str(tmp_path), "LORIKEET_ADMIN_KEY": server.operator_key}
        lorikeet = Cli(environ | {"LORIKEET_PORT": server.url.rpartition(":")[2]}, capsys)
        add = ("adapter", "add", "--tenant", "acme", "--name")
        await lorikeet.done("tenant", "create", "acme")
        try:
            added = await lorikeet.json(*add, "a", folder)
            await lorikeet.json(*add, "b", other)
            assert (added["version_state"], added["digest"] in store.digests()) == ("ready", True)
            code, out, _ = await lorikeet("adapter", "verify")
            assert (code, out) == (0, "2 contents are whole, 0 await collection\n")
            await lorikeet.json("adapter", "remove", "--tenant", "acme", "a")
            assert await server.services.lifecycle.collector.collect() == [added["digest"]]
            assert added["digest"] not in store.digests()
        finally:
            bucket.stop()
        code, _, err = await lorikeet(*add, "a", folder)
        assert (code, err) == (
            1,
            "lorikeet: The server cannot inspect or store adapters at the moment. Try again later.\n",
        )
        (newest, *_) = await lorikeet.json("adapter", "imports", "--tenant", "acme")
        assert newest["state"] == "failed"
        with pytest.raises(StoreFailure):
            await server.services.lifecycle.collector.collect()
