"""The `lorikeet` command: starts the parts of a server, and manages a running one through its admin API."""

from gateway.cli.command import main

__all__ = ["main"]
