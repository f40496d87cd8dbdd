"""An S3 server with a bucket that lets in the keys of one user alone, who may have two of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import obstore
from moto.server import ThreadedMotoServer
from obstore.exceptions import BaseError
from obstore.store import S3Store

from tests.patience import PATIENCE_S

REGION = "us-east-1"
USER = "lorikeet"
POLICY = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:*","Resource":"*"}]}'
NAMED_FOR_ROUTING = (
    f"AWS4-HMAC-SHA256 Credential=any/20260101/{REGION}/iam/aws4_request, SignedHeaders=host, Signature=0"
)
"""A header by which the server knows that a request is about users, where it does not check who asks."""


class GuardedBucket:
    """A bucket, and the keys that open it.

    url: the server's URL.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        httpx.put(f"{url}/bucket", timeout=PATIENCE_S).raise_for_status()
        self._ask("CreateUser")
        self._ask("PutUserPolicy", PolicyName="all", PolicyDocument=POLICY)

    def make_key(self) -> dict[str, str]:
        """Make a key, and return the variables that a process needs to use the bucket."""
        reply = self._ask("CreateAccessKey")
        key, secret = (re.findall(f"<{name}>(.+)</{name}>", reply)[0] for name in ("AccessKeyId", "SecretAccessKey"))
        return {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": self.url,
        }

    def delete_key(self, variables: dict[str, str]) -> None:
        """Delete a key, which opens nothing from now on."""
        self._ask("DeleteAccessKey", AccessKeyId=variables["AWS_ACCESS_KEY_ID"])

    def is_open_to(self, variables: dict[str, str]) -> bool:
        """Tell whether a key opens the bucket."""
        store = S3Store(
            "bucket",
            access_key_id=variables["AWS_ACCESS_KEY_ID"],
            secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
            region=REGION,
            endpoint=self.url,
            client_options={"allow_http": True},
        )
        try:
            obstore.list(store).collect()
        except BaseError:
            return False
        return True

    def guard(self, *, is_guarded: bool) -> None:
        """Check keys from now on, or no more."""
        free = "0" if is_guarded else "inf"
        httpx.post(f"{self.url}/moto-api/reset-auth", content=free, timeout=PATIENCE_S).raise_for_status()

    def _ask(self, action: str, **fields: str) -> str:
        body: dict[str, Any] = {"Action": action, "Version": "2010-05-08", "UserName": USER} | fields
        self.guard(is_guarded=False)
        reply = httpx.post(self.url, data=body, headers={"authorization": NAMED_FOR_ROUTING}, timeout=PATIENCE_S)
        self.guard(is_guarded=True)
        assert reply.status_code == httpx.codes.OK, reply.text
        return reply.text


@contextmanager
def guarded_bucket() -> Iterator[GuardedBucket]:
    """Give a bucket, until the context is left."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    bucket = GuardedBucket(f"http://{host}:{port}")
    try:
        yield bucket
    finally:
        bucket.guard(is_guarded=False)
        server.stop()
