"""`lorikeet adapter add`: a folder, an archive or a source becomes a version of an adapter."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.cli.adapters.adapter_path import add_tenant
from gateway.cli.errors import EXIT_OPEN, CommandFailed, WrongUsage
from gateway.cli.output import print_result
from gateway.cli.path_parts import name_part
from gateway.cli.progress import Progress
from gateway.cli.verbs import add_verb

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs

POLL_S = 0.25
UNTRIED = ("inspected", "probed")
"""States of a version that no engine has tried."""

OUTCOME_S = 60
"""Seconds to wait for an engine to try the new version, unless a flag sets another time."""

_DESCRIPTION = """\
Add an adapter, or a new version of it.

WHAT is one of:
  PATH                          a folder that peft's save_pretrained wrote, or a .tar, .tar.gz or .zip of it
  hf://ORGANIZATION/REPO[@REV]  a repository of the Hugging Face hub; REV is a branch, a tag or a commit
  s3://BUCKET/PREFIX            a folder with PEFT's two files, read with the server's credentials
  https://HOST/PATH             an archive

The server itself downloads from the hub, from buckets and from https, if LORIKEET_ADAPTER_SOURCES allows the source.
Adding the content of the current version again changes nothing. Files over 16 MiB are sent in pieces; --resume
continues an interrupted upload.

After several refused adapters in a row, a tenant must wait before adding the next adapter. This command then waits
too, up to ten minutes.

Exit code 4 means that the upload is complete but no engine has tried the adapter yet; `lorikeet adapter versions` shows
the outcome later.
"""
_EPILOG = """\
examples:
  lorikeet adapter add ./adapter --tenant initech --name support
  lorikeet adapter add hf://initech/support-lora@v2 --tenant initech --name support --no-promote
  lorikeet adapter add ./adapter.tar.gz --tenant initech --name support --resume imp_...
  lorikeet adapter add ./adapter --tenant initech --name support --base smollm2-135m-instruct
"""


def register(actions: Verbs) -> None:
    """Add `lorikeet adapter add` to the command line."""
    add = add_verb(actions, "add", _add, "add an adapter, or a new version of it", _DESCRIPTION, epilog=_EPILOG)
    add_tenant(add)
    add.add_argument(
        "--name", required=True, metavar="NAME", help="name of the adapter, as in the model id <base>:<name>"
    )
    add.add_argument("what", metavar="WHAT", help="path or source of the adapter, see above")
    add.add_argument(
        "--base", metavar="MODEL", help="base model that the adapter is for (default: the first one that is served)"
    )
    add.add_argument("--no-promote", action="store_true", help="do not make the new version the current version")
    add.add_argument("--resume", metavar="IMPORT_ID", help="id of an interrupted upload to continue")
    add.add_argument(
        "--wait",
        type=int,
        default=OUTCOME_S,
        metavar="SECONDS",
        help="seconds to wait until an engine has tried the adapter, before exiting with 4 (default: %(default)s)",
    )


def _add(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    name_part(arguments.name)
    if arguments.base is not None and arguments.resume:
        raise WrongUsage("--base names the base model of a new upload; --resume keeps the base model of the upload")
    with AdminClient.from_environment(environ) as client:
        project = client.tenant_path(arguments.tenant)
        if "://" not in arguments.what:
            return _upload(client, project, arguments)
        if arguments.resume:
            raise CommandFailed(
                "--resume continues an upload of a local path; downloads from a source continue by themselves"
            )
        return _fetch(client, project, arguments)


def _upload(client: AdminClient, project: str, arguments: argparse.Namespace) -> int:
    from gateway.cli.adapters.adapter_upload import Upload

    progress = Progress("sending", quiet=arguments.json)
    upload = Upload(
        client,
        progress,
        tenant=arguments.tenant,
        project=project,
        name=arguments.name,
        promote=not arguments.no_promote,
        base=arguments.base,
    )
    try:
        put = upload.send(Path(arguments.what), arguments.resume)
    finally:
        progress.done()
    model, version = put["model"], put["uploaded_version"]
    if put["version_state"] in UNTRIED:
        adapter = f"{project}/adapters/{arguments.name}"
        state = _outcome(client, f"{adapter}/versions/{version}", arguments.wait)["state"]
        put |= client.get(adapter) | {"object": put["object"], "version_state": state}
    if put["version_state"] in UNTRIED:
        return _report_waiting(arguments, put, f"version {version} of {model}")
    if put["version"] != version:
        text = f"version {version} of {model} is ready; `lorikeet adapter promote` makes it the current one"
    else:
        text = f"{model} {'is now' if put['changed'] else 'is already'} version {version} ({put['digest'][:12]})"
    return print_result(arguments, put, text)


def _fetch(client: AdminClient, project: str, arguments: argparse.Namespace) -> int:
    """Have the server download the adapter, and watch the import until the version is ready or refused."""
    from gateway.cli.adapters.adapter_upload import retry_while_paused

    wanted = {"name": arguments.name, "source": arguments.what, "promote": not arguments.no_promote}
    wanted |= {} if arguments.base is None else {"base": arguments.base}
    progress = Progress("fetching", quiet=arguments.json)
    imported = retry_while_paused(lambda: client.post(f"{project}/adapters", json=wanted), progress)
    try:
        imported = _wait_for_import(client, f"{project}/adapter_imports/{imported['id']}", progress)
    except KeyboardInterrupt:
        raise CommandFailed(
            f"the server is still working on the import {imported['id']}: see `lorikeet adapter imports`"
        ) from None
    finally:
        progress.done()
    if imported["state"] != "done":
        raise CommandFailed(f"{arguments.what}: {imported['reason']}")
    path = f"{project}/adapters/{arguments.name}/versions/{imported['version']}"
    version = _outcome(client, path, arguments.wait)
    shown = imported | {"version_state": version["state"], "current": version["current"]}
    if version["state"] in UNTRIED:
        return _report_waiting(arguments, shown, version["model"])
    text = f"{version['model']} is {'now current' if version['current'] else 'ready'} ({version['digest'][:12]})"
    return print_result(arguments, shown, text)


def _wait_for_import(client: AdminClient, path: str, progress: Progress) -> dict[str, Any]:
    """Wait for an import and return it once it is over."""
    while True:
        imported = client.get(path)
        if imported["state"] not in ("fetching", "uploaded"):
            return imported
        progress.show(imported["received_bytes"], imported["size_bytes"])
        time.sleep(POLL_S)


def _outcome(client: AdminClient, path: str, wait_s: int) -> dict[str, Any]:
    """Return the version at this path once an engine has tried it, or as it is after `wait_s`.

    Raises CommandFailed: when the engine refused the version.
    """
    deadline = time.monotonic() + wait_s
    while True:
        version = client.get(path)
        if version["state"] == "rejected":
            raise CommandFailed(f"{version['model']} was refused: {version['reason']}")
        if version["state"] not in UNTRIED or time.monotonic() > deadline:
            return version
        time.sleep(POLL_S)


def _report_waiting(arguments: argparse.Namespace, shown: dict[str, Any], what: str) -> int:
    text = f"{what} waits for an engine to try it; `lorikeet adapter versions` will tell how that ends"
    print_result(arguments, shown, text)
    return EXIT_OPEN
