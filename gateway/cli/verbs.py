"""The table of all commands, and the declarations by which a room adds its verbs to the command line.

A row names the room that declares a command. The room is imported when its command is used, so that `--help` is made of
the table alone. A room has a function `register(verbs)`, which adds a command with `add_command`, or with `add_group`
and one `add_verb` for each verb.
"""

from __future__ import annotations

import argparse
import functools
import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.cli.output import add_json_flag

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs

Run = Callable[[argparse.Namespace, Mapping[str, str]], int]
"""A function that runs a verb with its arguments and the environment; returns the exit code."""


class Command(NamedTuple):
    """One command of the command line."""

    name: str
    room: str
    """The module of `gateway.cli` that declares the command and its verbs."""
    help: str


COMMANDS = (
    Command("serve", "server.processes", "run everything on this machine"),
    Command("gateway", "server.processes", "run one gateway process"),
    Command("agent", "server.processes", "run the engines of this machine"),
    Command("worker", "server.processes", "run the work that no request waits for"),
    Command("engine", "server.processes", "run one engine process"),
    Command("migrate", "server.processes", "bring the database schema up to date"),
    Command("model", "server.processes", "download or convert the base model"),
    Command("settings", "server.processes", "list the settings"),
    Command("doctor", "server.doctor", "show what this machine offers to an engine, and measure it"),
    Command("chat", "chat.chat", "talk to a model"),
    Command("embed", "retrieval.embed", "turn texts into vectors"),
    Command("rerank", "retrieval.rerank", "rank texts by relevance for a query"),
    Command("batch", "batches.batches", "begin, watch, list and cancel batches, and read their results"),
    Command("file", "batches.files", "store, list, download and delete files"),
    Command("response", "stored.responses", "show, cancel and delete stored responses"),
    Command("conversation", "stored.conversations", "show and delete conversations"),
    Command("pool", "pools.pools", "create, change, scale and remove pools"),
    Command("replica", "pools.replicas", "list, drain and restart replicas"),
    Command("host", "pools.hosts", "let hosts join, drain and remove them"),
    Command("join", "pools.hosts", "make this machine a host of an installation"),
    Command(
        "provider-key", "pools.provider_keys", "set, list and remove a tenant's own keys for other makers' servers"
    ),
    Command("tenant", "organization.tenants", "create, list, suspend and delete tenants"),
    Command("key", "organization.keys", "create, list, rotate, suspend and revoke API keys"),
    Command("limit", "limits.limits", "set, list and remove limits"),
    Command("webhook", "limits.webhooks", "add, list, rotate and remove webhooks"),
    Command("adapter", "adapters.adapters", "add adapters, and switch between versions of an adapter"),
    Command("alias", "adapters.aliases", "set, list and remove aliases"),
    Command("route", "routing.routes", "create, change and explain routes"),
    Command("experiment", "experiments.experiments", "run A/B tests of a tenant: create, start, read and decide"),
    Command("feedback", "experiments.feedback", "say how good a reply was"),
    Command("demo", "experiments.demo", "try the demo"),
    Command("service-account", "organization.service_accounts", "create, list and remove service accounts"),
    Command("user", "organization.users", "create, list, change and remove users"),
    Command("member", "organization.members", "add, list and remove members of a tenant"),
    Command("organization", "organization.organization", "show, suspend and resume the organization"),
    Command("admin-key", "organization.admin_keys", "create, list, revoke and generate operators' keys"),
    Command("audit", "organization.audit", "list and verify the audit log"),
    Command("price", "billing.prices", "set, list and withdraw prices"),
    Command("usage", "billing.usage", "show used tokens and requests"),
    Command("costs", "billing.usage", "show costs"),
    Command("credit", "billing.credits", "grant and list credits"),
    Command("adjustment", "billing.credits", "charge or refund a tenant"),
    Command("period", "billing.periods", "list and close billing periods"),
    Command("invoice", "billing.periods", "issue and show invoices"),
    Command("export", "billing.exports", "export usage, costs or invoices"),
    Command("delivery", "billing.deliveries", "deliver exports regularly"),
    Command("stripe-customer", "billing.deliveries", "set the Stripe customer who is billed for a tenant"),
    Command("reconcile", "billing.reconcile", "compare the ledger with the engines' counts"),
    Command("backup", "server.backup", "back up database, journals and adapters"),
    Command("restore", "server.backup", "restore a backup, or an archive to a moment"),
    Command("archive", "server.archive", "archive the database's log, to restore any moment"),
    Command("drill", "server.archive", "try a restore"),
    Command("journal", "server.archive", "bill again what journals hold"),
    Command("upgrade", "server.upgrade", "show what stands in the way of an upgrade to this version"),
    Command("completion", "server.completion", "print a script that completes commands in a shell"),
)
"""All commands, in the order of `lorikeet --help`."""

_BY_NAME = {command.name: command for command in COMMANDS}


def register(verbs: Verbs, wanted: str | None = None) -> None:
    """Add commands to the command line. wanted: the only command that is used; None for all, with all their verbs.

    A wanted command that is not in the table adds the names and helps of all: enough for `--help` and a refusal.
    """
    if wanted is not None and wanted not in _BY_NAME:
        for command in COMMANDS:
            verbs.add_parser(command.name, help=command.help)
        return
    rooms = dict.fromkeys(command.room for command in COMMANDS if wanted in (None, command.name))
    for room in rooms:
        importlib.import_module(f"gateway.cli.{room}").register(verbs)


def add_group(
    verbs: Verbs, name: str, description: str, *, help: str | None = None, epilog: str | None = None
) -> Verbs:
    """Add a command that only has verbs, and return the object to add them to.

    help: None: as in the table. epilog: the text after the help; None: none.
    """
    group = _add_parser(verbs, name, help or _BY_NAME[name].help, description, epilog)
    return group.add_subparsers(metavar="ACTION", required=True)


def add_command(
    verbs: Verbs, name: str, run: Run, description: str, *, has_json: bool = True, **fixed: Any
) -> argparse.ArgumentParser:
    """Add a command of the table that has no verbs, and return its parser, as `add_verb` does."""
    return add_verb(verbs, name, run, _BY_NAME[name].help, description, has_json=has_json, **fixed)


def add_verb(
    actions: Verbs,
    name: str,
    run: Run,
    help: str,
    description: str,
    *,
    has_json: bool = True,
    epilog: str | None = None,
    **fixed: Any,
) -> argparse.ArgumentParser:
    """Add a verb and return its parser.

    run: gets the arguments that were given, and the fixed ones. has_json: the verb has the flag --json. A description
    of several lines is shown as it is. epilog: the text after the help; None: none.
    """
    parser = _add_parser(actions, name, help, description, epilog)
    parser.set_defaults(run=run, **fixed)
    if has_json:
        add_json_flag(parser)
    return parser


def _add_parser(verbs: Verbs, name: str, help: str, description: str, epilog: str | None) -> argparse.ArgumentParser:
    shape = argparse.RawDescriptionHelpFormatter if "\n" in description else argparse.HelpFormatter
    return verbs.add_parser(name, help=help, description=description, epilog=epilog, formatter_class=shape)


def over_admin(run: Callable[[argparse.Namespace, AdminClient], int]) -> Run:
    """Decorate a verb of the admin API: it gets a client of the running server in place of the environment."""

    @functools.wraps(run)
    def run_with_client(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
        from gateway.cli.client import AdminClient

        with AdminClient.from_environment(environ) as client:
            return run(arguments, client)

    return run_with_client
