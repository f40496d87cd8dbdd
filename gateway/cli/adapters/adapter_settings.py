"""`lorikeet adapter set`: defaults for requests to an adapter, and whether it stays on engines."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gateway.cli.adapters.adapter_path import adapter_path, add_adapter
from gateway.cli.errors import CommandFailed
from gateway.cli.output import print_result
from gateway.cli.verbs import add_verb

if TYPE_CHECKING:
    from gateway.cli.output import Verbs


def _finite(text: str) -> float:
    """Parse a finite number: JSON has no other numbers.

    Raises ArgumentTypeError: when the text is not a finite number.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"expected a number, not {text!r}")
    return number


DEFAULTS: tuple[tuple[str, Callable[[str], Any]], ...] = (
    ("temperature", _finite),
    ("top_p", _finite),
    ("top_k", int),
    ("min_p", _finite),
    ("presence_penalty", _finite),
    ("frequency_penalty", _finite),
    ("repetition_penalty", _finite),
    ("max_tokens", int),
    ("system_prompt", str),
)


def register(actions: Verbs) -> None:
    """Add `lorikeet adapter set` to the command line."""
    setting = add_verb(
        actions,
        "set",
        _set,
        "set the defaults of an adapter, or pin an adapter",
        "Set default values for requests to this adapter, used where a request does not set the "
        "field. Defaults that are not named stay unchanged, and apply to future versions too.",
    )
    add_adapter(setting)
    for name, kind in DEFAULTS:
        metavar = "TEXT" if kind is str else "N"
        setting.add_argument(f"--{name.replace('_', '-')}", dest=name, type=kind, metavar=metavar, help=_help(name))
    names = [name for name, _ in DEFAULTS]
    setting.add_argument(
        "--clear", nargs="+", default=[], choices=names, metavar="DEFAULT", help="names of defaults to remove"
    )
    pinning = setting.add_mutually_exclusive_group()
    pinning.add_argument("--pin", action="store_true", help="keep the adapter loaded on every engine")
    pinning.add_argument(
        "--unpin", action="store_true", help="allow engines to unload the adapter when other adapters need the memory"
    )


def _help(name: str) -> str:
    if name == "system_prompt":
        return "system message for chats that have no system message"
    return f"{name} of requests that do not set {name}"


def _set(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    wanted = _wanted_settings(arguments)
    with AdminClient.from_environment(environ) as client:
        settings = client.post(adapter_path(client, arguments.tenant, arguments.name), json=wanted)
    shown = [f"{name} {value}" for name, value in settings["defaults"].items() if value is not None]
    shown += ["pinned"] if settings["pinned"] else []
    return print_result(arguments, settings, f"{settings['name']}: {', '.join(shown) or 'no settings'}")


def _wanted_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the body with the wanted settings.

    Raises CommandFailed: when no setting is given, or a default is both set and cleared.
    """
    given = {name: getattr(arguments, name) for name, _ in DEFAULTS if getattr(arguments, name) is not None}
    if twice := given.keys() & set(arguments.clear):
        raise CommandFailed(f"{min(twice)} cannot be both set and cleared")
    defaults = given | dict.fromkeys(arguments.clear)
    wanted: dict[str, Any] = {"defaults": defaults} if defaults else {}
    if arguments.pin or arguments.unpin:
        wanted["pinned"] = arguments.pin
    if not wanted:
        raise CommandFailed(
            "no default and no --pin or --unpin was given; `lorikeet adapter set --help` lists the settings"
        )
    return wanted
