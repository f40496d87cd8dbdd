"""Arguments about a pool's model and users, and their form in the admin API."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.cli.errors import WrongUsage
from gateway.domain.pools.drivers import DRIVERS, OWN_DRIVER

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the flag that names the base model."""
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="base model: `demo`, `demo-random`, the absolute path of a folder or of a .gguf file on the hosts, or a "
        "repository id of the Hugging Face hub, such as Qwen/Qwen3-0.6B; with servers of another maker, the model "
        "whose tokenizer is used, if any",
    )


def add_engine_settings(parser: argparse.ArgumentParser, *, can_unset: bool) -> None:
    """Add the flags that set engine settings and, where `can_unset`, take them back."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="engine setting that differs from the hosts' own, such as max_model_len=8192, or setting of the driver of "
        "servers of another maker, such as served_model=llama-3; may be repeated",
    )
    if can_unset:
        parser.add_argument(
            "--unset",
            action="append",
            default=[],
            metavar="NAME",
            help="engine setting for which the hosts' own value counts again; may be repeated",
        )


def add_servers(parser: argparse.ArgumentParser, *, can_choose: bool) -> None:
    """Add the flags about servers of other makers. can_choose: whether the driver may be named."""
    if can_choose:
        parser.add_argument(
            "--engine",
            choices=DRIVERS,
            default=OWN_DRIVER,
            help="servers behind the pool: engines of Lorikeet (the default), or a driver for servers of another "
            "maker, which run already at --url; agents start servers of llamacpp and vllm where no --url is given",
        )
    parser.add_argument(
        "--url",
        action="append",
        default=[],
        metavar="URL",
        help="address of a server of another maker, such as http://gpu-1:8000; may be repeated, each is a replica",
    )


def add_access(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name the tenants of the pool."""
    who = parser.add_mutually_exclusive_group()
    who.add_argument(
        "--tenant",
        action="append",
        default=[],
        metavar="NAME",
        help="tenant that may use the pool, in place of all tenants; may be repeated",
    )
    who.add_argument("--all-tenants", action="store_true", help="let all tenants of the installation use the pool")


def read_model(text: str) -> str:
    """Return the model as hosts find it: a relative path becomes an absolute one."""
    if text.startswith(("./", "../", "~")) or (text.endswith(".gguf") and Path(text).exists()):
        return str(Path(text).expanduser().absolute())
    return text


def changed_settings(present: dict[str, str], arguments: argparse.Namespace) -> dict[str, str]:
    """Return engine settings after --set and --unset.

    Raises WrongUsage: when a setting to unset is not there, or one to set has no value.
    """
    settings = dict(present)
    for name in getattr(arguments, "unset", []):
        if settings.pop(name, None) is None:
            raise WrongUsage(f"--unset {name}: the pool has no such setting of its own")
    for text in arguments.set:
        name, separator, value = text.partition("=")
        if not (name and separator):
            raise WrongUsage(f"--set {text}: give a name and a value, such as max_model_len=8192")
        settings[name] = value
    return settings


def read_access(client: AdminClient, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a body that say who may use the pool; {} where the flags say nothing about that."""
    if arguments.all_tenants:
        return {"access": "all"}
    if arguments.tenant:
        grants = [{"project_id": client.tenant_id(name)} for name in dict.fromkeys(arguments.tenant)]
        return {"access": "listed", "grants": grants}
    return {}
