"""`lorikeet adapter gguf`: an adapter as the file with which llama.cpp's server is started.

The command needs no server.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.errors import CommandFailed
from gateway.cli.output import print_result
from gateway.cli.verbs import add_verb

if TYPE_CHECKING:
    from gateway.cli.output import Verbs


def register(actions: Verbs) -> None:
    """Add the command `gguf`. actions: the subcommands of the verb `adapter`."""
    gguf = add_verb(
        actions,
        "gguf",
        _write,
        "write an adapter as a file for llama.cpp",
        "Write an adapter as a GGUF file for llama.cpp, named by the digest of its content: a pool of "
        "llama.cpp servers that were started with such files (--lora) answers for the adapters. No server is needed.",
    )
    gguf.add_argument("--base", required=True, metavar="FOLDER", type=Path, help="folder of the base model")
    gguf.add_argument(
        "--adapter", required=True, metavar="FOLDER", type=Path, help="folder of the adapter, as PEFT saves adapters"
    )
    gguf.add_argument("--out", required=True, metavar="FOLDER", type=Path, help="folder for the file")


def _write(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    if not arguments.adapter.is_dir():
        raise CommandFailed(
            f"--adapter: {arguments.adapter} is not a folder; expected one that PEFT's save_pretrained wrote"
        )
    from adapters.errors import AdapterRejected
    from adapters.gguf_file import NotConvertible, write_gguf

    try:
        written = write_gguf(arguments.base, arguments.adapter, arguments.out)
    except (AdapterRejected, NotConvertible, OSError) as error:
        raise CommandFailed(str(error)) from None
    value = {"path": str(written.path), "modules": written.num_modules, "bytes": written.num_bytes}
    return print_result(arguments, value, f"{written.path}: {written.num_modules} linears, {written.num_bytes} bytes")
