"""`lorikeet host`: the machines on which agents run engines; and `lorikeet join`, which makes a machine a host."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gateway.cli.errors import CommandFailed, WrongUsage
from gateway.cli.output import print_json, print_result, utc
from gateway.cli.verbs import add_command, add_group, add_verb, over_admin
from gateway.settings import load_settings

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet host` and `lorikeet join` to the command line."""
    actions = add_group(
        verbs, "host", "Manage hosts: the machines on which agents start engines, and gateways reach them."
    )
    add_verb(
        actions, "list", _list, "list hosts", "List hosts with the memory that replicas take there, by the estimates."
    )
    show = add_verb(actions, "show", _show, "show one host", "Show one host, with its labels.")
    token = add_verb(
        actions,
        "token",
        _token,
        "create a token for a new host",
        "Create a token with which one machine may join within an hour, by `lorikeet join`. It is shown this once.",
    )
    token.add_argument("--name", metavar="NAME", help="name that the host gets (default: the machine's own)")
    drain = add_verb(
        actions,
        "drain",
        _drain,
        "move the replicas of a host elsewhere",
        "Let other hosts take over the replicas of this one, each as soon as its successor is ready. A "
        "replica for which no other host has room stays.",
        drained=True,
    )
    undrain = add_verb(
        actions,
        "undrain",
        _drain,
        "use a drained host again",
        "Let replicas start on a drained host again.",
        drained=False,
    )
    label = add_verb(actions, "label", _label, "replace the labels of a host", "Replace all labels of a host.")
    remove = add_verb(
        actions,
        "remove",
        _remove,
        "remove a host for good",
        "Remove a host. The keys of the host open no engine any more, and the agent there ends. A host "
        "that still has replicas is refused.",
    )
    remove.add_argument(
        "--force", action="store_true", help="count the replicas there as lost: for a host that does not come back"
    )
    for parser in (show, drain, undrain, label, remove):
        parser.add_argument("host", metavar="HOST", help="name or id of the host, as `host list` shows them")
    label.add_argument("labels", metavar="NAME=VALUE", nargs="*", help="labels; none takes all away")
    token.add_argument(
        "--label", metavar="NAME=VALUE", dest="labels", action="append", default=[], help="label of the host (repeat)"
    )
    join = add_command(
        verbs,
        "join",
        _join,
        "Make this machine a host of another installation: keys are made in the data folder, and the "
        "installation learns the public one. Afterwards `lorikeet agent` runs engines here, and `lorikeet gateway` "
        "reaches the engines of other hosts.",
    )
    join.add_argument("url", metavar="URL", help="URL of a gateway of the installation, e.g. https://llm.example.com")
    join.add_argument("token", metavar="TOKEN", help="token of `lorikeet host token`")
    join.add_argument("--name", metavar="NAME", help="name of the host, unless the token has one (default: hostname)")


@over_admin
def _list(arguments: argparse.Namespace, client: AdminClient) -> int:
    from gateway.cli.pools.tables import print_hosts

    hosts = client.get_all("/hosts")
    if arguments.json:
        print_json(hosts)
    else:
        print_hosts(hosts)
    return 0


@over_admin
def _show(arguments: argparse.Namespace, client: AdminClient) -> int:
    from gateway.cli.pools.tables import print_hosts, print_nodes

    host = _find_host(client, arguments.host)
    if arguments.json:
        print_json(host)
    else:
        print_hosts([host])
        print("labels:", " ".join(f"{name}={value}" for name, value in sorted(host["labels"].items())) or "none")
        print("version:", host["version"] or "no agent yet")
        if host["nodes"]:
            print()
            print_nodes(host["nodes"])
        for each in host["failures"]:
            print(
                f"cannot prepare revision {each['revision']} of {each['pool_id']}, tried {each['num_failures']} times, "
                f"again at {utc(each['retry_at'])}: {each['why']}"
            )
    return 0


def _token(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    wanted: dict[str, Any] = {"labels": read_labels(arguments.labels)}
    if arguments.name is not None:
        wanted["name"] = arguments.name
    with AdminClient.from_environment(environ) as client:
        made = client.post("/hosts/tokens", json=wanted)
        text = f"on the new host, within an hour:\n    lorikeet join {client.url} {made['token']}"
    return print_result(arguments, made, text)


@over_admin
def _drain(arguments: argparse.Namespace, client: AdminClient) -> int:
    path = f"/hosts/{_find_host(client, arguments.host)['id']}"
    host = client.post(path, json={"is_drained": arguments.drained})
    state = f"is drained; replicas there: {host['num_replicas']}" if host["is_drained"] else "is used again"
    return print_result(arguments, host, f"host {host['name']} {state}")


def _label(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    labels = read_labels(arguments.labels)
    with AdminClient.from_environment(environ) as client:
        host = client.post(f"/hosts/{_find_host(client, arguments.host)['id']}", json={"labels": labels})
    return print_result(arguments, host, f"host {host['name']} has {len(host['labels'])} labels")


@over_admin
def _remove(arguments: argparse.Namespace, client: AdminClient) -> int:
    host = _find_host(client, arguments.host)
    gone = client.delete(f"/hosts/{host['id']}{'?force=true' if arguments.force else ''}")
    return print_result(arguments, gone, f"host {host['name']} is removed")


def _join(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    import socket
    import time

    from engine.curve import BadKey
    from engine.protocol import PROTOCOL_VERSION
    from gateway.cli.client import LOGIN_PATH, AdminClient, read_url
    from gateway.support.host import ID_NAME, host_keys
    from gateway.support.process import make_data_folder, write_private

    settings = load_settings(environ)
    note = settings.data_dir / ID_NAME
    try:
        make_data_folder(settings.data_dir)
        if note.exists():
            raise CommandFailed(
                f"{settings.data_dir} belongs to host {note.read_text().strip()} already: set LORIKEET_DATA_DIR to "
                "another folder, or go on with that host"
            )
        keys = host_keys(settings.data_dir)
        wanted = {"token": arguments.token, "name": arguments.name or socket.gethostname()}
        wanted |= {"public_key": keys.public}
        with AdminClient(read_url(arguments.url, "URL"), "", LOGIN_PATH) as client:
            content = wanted | {"protocol": PROTOCOL_VERSION, "unix_time": int(time.time())}
            host = client.post("/hosts/join", json=content)
        write_private(note, f"{host['id']}\n")
    except (OSError, BadKey) as error:
        raise CommandFailed(f"this machine's keys cannot be kept: {error}") from None
    text = (
        f"this machine is host {host['name']} ({host['id']}) now. Set DATABASE_URL, LORIKEET_ADAPTER_STORE, "
        "LORIKEET_FILE_STORE and LORIKEET_CONTENT_KEY as the installation has them, and LORIKEET_LINK_ADDRESS to this "
        "machine's address; then run `lorikeet agent`, `lorikeet gateway` or both."
    )
    return print_result(arguments, host, text)


def _find_host(client: AdminClient, name: str) -> dict[str, Any]:
    """Return the host of this name or with this id.

    Raises CommandFailed: when there is no such host, or several have the name.
    """
    found = [host for host in client.get_all("/hosts") if name in (host["name"], host["id"])]
    if len(found) > 1:
        raise CommandFailed(f"several hosts are named '{name}': name one by its id, as `lorikeet host list` shows it")
    if not found:
        raise CommandFailed(f"there is no host named '{name}'; `lorikeet host list` lists all hosts")
    return found[0]


def read_labels(texts: Sequence[str]) -> dict[str, str]:
    """Return labels of the form NAME=VALUE.

    Raises WrongUsage: when a text has another form.
    """
    for text in texts:
        if "=" not in text:
            raise WrongUsage(f"'{text}' is no label; expected NAME=VALUE")
    return dict(text.split("=", 1) for text in texts)


def read_excluded(texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of labels of the form NAME=VALUE, by the labels' names.

    Raises WrongUsage: when a text has another form.
    """
    excluded: dict[str, list[str]] = {}
    for text in texts:
        [(name, value)] = read_labels([text]).items()
        excluded.setdefault(name, []).append(value)
    return excluded
