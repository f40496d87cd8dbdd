"""`lorikeet adapter merge`: a plain model folder of a base model and one adapter. The command needs no server."""

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
    """Add the command `merge`. actions: the subcommands of the verb `adapter`."""
    merge = add_verb(
        actions,
        "merge",
        _merge,
        "merge an adapter into the base model, as one plain model",
        "Merge the weights of an adapter into the weights of the base model, and write the result "
        "as a plain model folder. No server is needed.",
    )
    merge.add_argument("--base", required=True, metavar="FOLDER", type=Path, help="folder of the base model")
    merge.add_argument(
        "--adapter", required=True, metavar="FOLDER", type=Path, help="folder of the adapter, as PEFT saves adapters"
    )
    merge.add_argument("--out", required=True, metavar="FOLDER", type=Path, help="new or empty folder for the result")
    merge.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="number format of the result's weights (default: the base model's)",
    )


def _merge(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    if not arguments.adapter.is_dir():
        raise CommandFailed(
            f"--adapter: {arguments.adapter} is not a folder; expected one that PEFT's save_pretrained wrote"
        )
    from engine.config.openmp import sleep_while_waiting

    sleep_while_waiting()  # adapters.merge imports torch
    from adapters.errors import AdapterRejected
    from adapters.merge import MergeRefused, merge

    try:
        merged = merge(arguments.base, arguments.adapter, arguments.out, arguments.dtype)
    except (AdapterRejected, MergeRefused, OSError) as error:
        raise CommandFailed(str(error)) from None
    value = {"out": str(arguments.out), "modules": merged.num_modules, "bytes": merged.num_bytes}
    text = f"{arguments.out}: {merged.num_modules} linears merged, {merged.num_bytes} bytes of weights"
    return print_result(arguments, value, text)
