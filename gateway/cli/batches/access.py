"""The flags by which commands that take a project's key find the server and the key."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.output import add_json_flag

if TYPE_CHECKING:
    from gateway.cli.chat.inference import InferenceClient


def add_access(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a command that takes a project's key."""
    parser.add_argument(
        "--url", metavar="URL", help="URL of the server (default: LORIKEET_URL, or the server of the data folder)"
    )
    parser.add_argument("--key", metavar="KEY", help="API key (default: LORIKEET_API_KEY, or the key of the demo)")
    add_json_flag(parser)


def project_client(arguments: argparse.Namespace, environ: Mapping[str, str]) -> InferenceClient:
    """Return a client for the server and the key that the flags name.

    Raises BadSetting: when a setting is wrong.
    Raises WrongUsage: when no key is known.
    Raises ServerUnreachable: when the data folder's server does not run.
    """
    from gateway.cli.chat.inference import InferenceClient, find_access

    return InferenceClient(find_access(arguments.url, arguments.key, environ))
