"""Arguments that commands about experiments share, and the look-up of a named experiment."""

from __future__ import annotations

import argparse
import re
import time
from typing import TYPE_CHECKING, Any

from gateway.cli.billing.money import parse_instant
from gateway.cli.errors import CommandFailed

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient

AGE_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def add_tenant(parser: argparse.ArgumentParser) -> None:
    """Add the flag that names the tenant."""
    parser.add_argument("--tenant", required=True, metavar="NAME", help="name of the tenant")


def add_name(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names the experiment."""
    parser.add_argument("name", metavar="NAME", help="name of the experiment")


def parse_percent(text: str) -> float:
    """Return a percentage above 0 and up to 100, with any number of decimals.

    Raises ArgumentTypeError: when the text is no such percentage.
    """
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = 0.0
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"expected a percentage from 0.01 to 100, not '{text}'")
    return value


def parse_part(text: str) -> int:
    """Return a percentage above 0 in 10,000ths.

    Raises ArgumentTypeError: for a text that is no percentage, or has more than two decimals.
    """
    parts = parse_percent(text) * 100
    if abs(parts - round(parts)) > 1e-6:
        raise argparse.ArgumentTypeError(f"a percentage has at most two decimals here, not '{text}'")
    return round(parts)


def parse_share(text: str) -> int:
    """Return a percentage as 10,000ths, as `parse_part` does; it may be 0.

    Raises ArgumentTypeError: when the text is no percentage.
    """
    return 0 if text.removesuffix("%") in ("0", "0.0") else parse_part(text)


def past_time(text: str) -> int:
    """Return a time as Unix seconds: an age such as 2h or 3d, a date or a time in UTC, or Unix seconds themselves.

    Raises ArgumentTypeError: when the text has none of these forms.
    """
    if re.fullmatch(r"[0-9]{1,10}", text):
        return int(text)
    if age := re.fullmatch(r"([0-9]{1,6})([smhd])", text):
        return int(time.time()) - int(age[1]) * AGE_UNITS_S[age[2]]
    try:
        return parse_instant(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            "expected an age such as 30m, 2h or 3d, a time in UTC such as 2026-12-01T09:30, or Unix seconds, "
            f"not '{text}'"
        ) from None


def warnings_of(found: dict[str, Any]) -> str:
    """Return the warnings about an experiment or a preview, a line each, to be printed after the text of a command."""
    return "".join(f"\nwarning: {each['text']}" for each in found.get("warnings") or ())


def find_experiment(client: AdminClient, arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Return the path of the experiment that the arguments name, and the experiment as the server shows it.

    Raises CommandFailed: when the tenant has no such experiment.
    """
    base = f"{client.tenant_path(arguments.tenant)}/experiments"
    for each in client.get_all(base):
        if arguments.name in (each["name"], each["id"]):
            return f"{base}/{each['id']}", each
    raise CommandFailed(
        f"{arguments.tenant} has no experiment named '{arguments.name}'; `lorikeet experiment list` lists all"
    )
