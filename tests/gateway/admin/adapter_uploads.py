"""Uploads of adapters as a client of the admin API sends them."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import httpx

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


async def upload(
    client: httpx.AsyncClient, project: str, name: str, folder: Path, *, promote: bool = True
) -> httpx.Response:
    """Upload both files of a folder in one request.

    promote: True: the version becomes the current one.
    """
    files = {file_name: (folder / file_name).read_bytes() for file_name in (CONFIG, WEIGHTS)}
    fields = {"name": name} if promote else {"name": name, "promote": "false"}
    return await client.post(f"{project}/adapters", data=fields, files=files)


def archive_of(folder: Path) -> bytes:
    """Return a tar archive of both files of a folder."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for file_name in (CONFIG, WEIGHTS):
            archive.add(folder / file_name, arcname=file_name)
    return made.getvalue()


def error_of(reply: httpx.Response) -> tuple[int, str | None, str | None]:
    """Return status, param and code of a refusal."""
    error: dict[str, Any] = reply.json()["error"]
    return reply.status_code, error["param"], error["code"]
