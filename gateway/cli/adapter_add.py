"""`lorikeet adapter add`: a folder, an archive or a source becomes a version of an adapter."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gateway.cli.adapter_path import add_tenant
from gateway.cli.errors import CommandFailed
from gateway.cli.output import add_json_flag, print_result
from gateway.cli.progress import Progress

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs

POLL_S = 0.25
PROBE_S = 10.0
"""How long to wait for an engine to have tried what was fetched."""

_DESCRIPTION = """\
Add an adapter, or a new version of it.

WHAT is one of
  PATH                          a folder that peft's save_pretrained wrote, or a .tar, .tar.gz or .zip of it
  hf://ORGANIZATION/REPO[@REV]  a repository of the Hugging Face hub; REV is a branch, a tag or a commit
  s3://BUCKET/PREFIX            a folder with PEFT's two files, read with the server's credentials
  https://HOST/PATH             an archive

The server fetches the last three itself, from where LORIKEET_ADAPTER_SOURCES allows it. Adding the content that is
current changes nothing. Content over 16 MiB is sent in pieces; if that is cut off, --resume goes on.
"""
_EPILOG = """\
examples:
  lorikeet adapter add ./adapter --tenant initech --name support
  lorikeet adapter add hf://initech/support-lora@v2 --tenant initech --name support --no-promote
  lorikeet adapter add ./adapter.tar.gz --tenant initech --name support --resume imp_...
"""


def register(actions: Verbs) -> None:
    add = actions.add_parser(
        "add",
        help="add an adapter, or a new version of it",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_tenant(add)
    add.add_argument("--name", required=True, metavar="NAME", help="the adapter's part of the model id <base>:<name>")
    add.add_argument("what", metavar="WHAT", help="a path or a source, see above")
    add.add_argument("--no-promote", action="store_true", help="do not make it the current version once it is ready")
    add.add_argument("--resume", metavar="IMPORT_ID", help="go on with an upload that was cut off")
    add_json_flag(add)
    add.set_defaults(run=_add)


def _add(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        project = client.tenant_path(arguments.tenant)
        if "://" not in arguments.what:
            return _upload(client, project, arguments)
        if arguments.resume:
            raise CommandFailed("--resume goes on with an upload; what the server fetches goes on by itself")
        return _fetch(client, project, arguments)


def _upload(client: AdminClient, project: str, arguments: argparse.Namespace) -> int:
    from gateway.cli.adapter_upload import Upload

    progress = Progress("sending", quiet=arguments.json)
    upload = Upload(client, project, progress, name=arguments.name, promote=not arguments.no_promote)
    try:
        put = upload.send(Path(arguments.what), arguments.resume)
    finally:
        progress.done()
    model, version = put["model"], put["uploaded_version"]
    if put["version_state"] != "ready":
        text = f"version {version} of {model} waits for an engine to try it"
    elif put["version"] != version:
        text = f"version {version} of {model} is ready; `lorikeet adapter promote` makes it the current one"
    else:
        text = f"{model} {'is now' if put['changed'] else 'is already'} version {version} ({put['digest'][:12]})"
    return print_result(arguments, put, text)


def _fetch(client: AdminClient, project: str, arguments: argparse.Namespace) -> int:
    """Let the server fetch, and watch it until the version is ready or refused."""
    wanted = {"name": arguments.name, "source": arguments.what, "promote": not arguments.no_promote}
    imported = client.post(f"{project}/adapters", json=wanted)
    progress = Progress("fetching", quiet=arguments.json)
    try:
        imported = _wait(client, f"{project}/adapter_imports/{imported['id']}", progress)
    except KeyboardInterrupt:
        raise CommandFailed(f"the server goes on with {imported['id']}: see `lorikeet adapter imports`") from None
    finally:
        progress.done()
    if imported["state"] != "done":
        raise CommandFailed(f"{arguments.what}: {imported['reason']}")
    version = _probed(client, f"{project}/adapters/{quote(arguments.name, safe='')}/versions/{imported['version']}")
    if version["state"] == "rejected":
        raise CommandFailed(f"{version['model']} was refused: {version['reason']}")
    if version["state"] != "ready":
        text = f"{version['model']} waits for an engine to try it"
    else:
        text = f"{version['model']} is {'now current' if version['current'] else 'ready'} ({version['digest'][:12]})"
    shown = imported | {"version_state": version["state"], "current": version["current"]}
    return print_result(arguments, shown, text)


def _wait(client: AdminClient, path: str, progress: Progress) -> dict[str, Any]:
    """The import once it is over."""
    while True:
        imported = client.get(path)
        if imported["state"] not in ("fetching", "uploaded"):
            return imported
        progress.show(imported["received_bytes"], imported["size_bytes"])
        time.sleep(POLL_S)


def _probed(client: AdminClient, path: str) -> dict[str, Any]:
    """The version as it is after its probe, or after `PROBE_S` without one."""
    deadline = time.monotonic() + PROBE_S
    while True:
        version = client.get(path)
        if version["state"] not in ("inspected", "probed") or time.monotonic() > deadline:
            return version
        time.sleep(POLL_S)
