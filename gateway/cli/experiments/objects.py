"""`lorikeet experiment metric`, `layer` and `holdout`: the objects to which experiments of a tenant refer."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.cli.errors import WrongUsage
from gateway.cli.experiments.arguments import add_tenant, parse_part
from gateway.cli.output import print_result, print_rows
from gateway.cli.path_parts import name_part
from gateway.cli.verbs import add_group, add_verb, over_admin

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs

PATHS = {"metric": "feedback_metrics", "layer": "experiment_layers", "holdout": "holdouts"}
COLUMNS = {
    "metric": ("name", "type", "goal", "kind", "description"),
    "layer": ("name", "free", "experiments"),
    "holdout": ("name", "size"),
}


def register(actions: Verbs) -> None:
    """Add `lorikeet experiment metric`, `layer` and `holdout` to the command line."""
    texts = {
        "metric": ("metrics that come as feedback", "Manage a tenant's metrics that come as feedback."),
        "layer": ("layers", "Manage a tenant's layers: experiments of one layer have no unit in common."),
        "holdout": ("holdouts", "Manage a tenant's holdouts: units that take part in no experiment."),
    }
    for what, (short, text) in texts.items():
        verbs = add_group(actions, what, text, help=f"create, list and delete {short}")
        create = add_verb(verbs, "create", _create, f"create a {what}", f"Create a {what} of a tenant.", what=what)
        create.add_argument("name", metavar="NAME", help=f"name of the {what}")
        if what == "metric":
            _add_metric(create)
        if what == "holdout":
            create.add_argument("size", type=parse_part, metavar="PERCENT", help="part of all units that is held out")
        listing = add_verb(verbs, "list", _list, f"list {short}", f"List a tenant's {short}.", what=what)
        delete = add_verb(
            verbs, "delete", _delete, f"delete a {what}", f"Delete a {what} that nothing refers to.", what=what
        )
        delete.add_argument("name", metavar="NAME", help=f"name of the {what}")
        for verb in (create, listing, delete):
            add_tenant(verb)


def _add_metric(create: argparse.ArgumentParser) -> None:
    create.add_argument(
        "--type", choices=("boolean", "number", "label"), default="boolean", help="kind of value (default: boolean)"
    )
    create.add_argument(
        "--goal", choices=("increase", "decrease"), default="increase", help="direction in which the metric gets better"
    )
    create.add_argument(
        "--kind",
        choices=("mean", "ratio"),
        default="mean",
        help="mean: a unit's value is the sum of its votes; ratio: votes are averaged over all votes (default: mean)",
    )
    create.add_argument("--least", type=float, metavar="NUMBER", help="smallest value of a number")
    create.add_argument("--most", type=float, metavar="NUMBER", help="largest value of a number")
    create.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help="label and the number that it stands for. Repeat for each label",
    )
    create.add_argument("--description", default="", metavar="TEXT", help="meaning of the metric, for people")


def _create(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    body: dict[str, Any] = {"name": arguments.name}
    if arguments.what == "metric":
        body |= {name: getattr(arguments, name) for name in ("type", "goal", "kind", "least", "most", "description")}
        body["labels"] = dict(_label(each) for each in arguments.label) or None
    if arguments.what == "holdout":
        body["size"] = arguments.size
    with AdminClient.from_environment(environ) as client:
        made = client.post(f"{client.tenant_path(arguments.tenant)}/{PATHS[arguments.what]}", json=body)
    return print_result(arguments, made, f"{arguments.what} {made['name']} is there")


@over_admin
def _list(arguments: argparse.Namespace, client: AdminClient) -> int:
    found = client.get_all(f"{client.tenant_path(arguments.tenant)}/{PATHS[arguments.what]}")
    columns = COLUMNS[arguments.what]
    return print_rows(
        arguments,
        found,
        [name.upper() for name in columns],
        [[_cell(name, each[name]) for name in columns] for each in found],
    )


def _delete(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    name = name_part(arguments.name, arguments.what)
    with AdminClient.from_environment(environ) as client:
        gone = client.delete(f"{client.tenant_path(arguments.tenant)}/{PATHS[arguments.what]}/{name}")
    return print_result(arguments, gone, f"{arguments.what} {name} is deleted")


def _cell(name: str, value: Any) -> object:
    if name in ("free", "size"):
        return f"{value / 100:g} %"
    return ", ".join(value) if isinstance(value, list) else value


def _label(text: str) -> tuple[str, float]:
    name, _, value = text.rpartition("=")
    try:
        return name, float(value)
    except ValueError:
        raise WrongUsage(f"--label: expected NAME=NUMBER, not '{text}'") from None
