"""`lorikeet pool key`: the key that the servers of a pool of another maker ask for."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.errors import WrongUsage
from gateway.cli.output import print_result
from gateway.cli.pools.finding import find_pool
from gateway.cli.verbs import over_admin

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient


@over_admin
def set_key(arguments: argparse.Namespace, client: AdminClient) -> int:
    """Set or remove the key of a pool's servers. The key is read from a file, since arguments can be seen by others."""
    pool = find_pool(client, arguments.name)
    if arguments.remove:
        gone = client.delete(f"/pools/{pool['id']}/key")
        return print_result(arguments, gone, f"pool {pool['name']} has no key any more")
    reply = client.post(f"/pools/{pool['id']}/key", json={"key": read_key(arguments.file)})
    hint = f" ending in {reply['hint']}" if reply["hint"] else ""
    return print_result(arguments, reply, f"pool {pool['name']} sends its servers the key{hint}")


def read_key(file: str) -> str:
    """Return the key in a file; "-" stands for standard input.

    Raises WrongUsage: when the file cannot be read, is no text or is empty.
    """
    try:
        key = (sys.stdin.read() if file == "-" else Path(file).read_text()).strip()
    except OSError as error:
        raise WrongUsage(f"--from {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise WrongUsage(f"--from {file}: it is no text") from None
    if not key:
        raise WrongUsage(f"--from {file}: it holds no key")
    return key
