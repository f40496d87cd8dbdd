"""`lorikeet embed`: texts as vectors, one on each line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.batches.access import add_access, project_client
from gateway.cli.errors import EXIT_OK
from gateway.cli.output import print_json
from gateway.cli.retrieval.texts import add_texts, texts_of
from gateway.cli.verbs import add_command

if TYPE_CHECKING:
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet embed` to the command line."""
    embed = add_command(
        verbs,
        "embed",
        _run,
        "Turn texts into vectors, and print each as a JSON list on a line, in the order of the texts. The "
        "texts are arguments and the lines of a file, or else lines of a pipe. The server and the key come from the "
        "flags, from LORIKEET_URL and LORIKEET_API_KEY, or from the demo in the data folder.",
        has_json=False,
    )
    add_texts(embed, "texts", "texts to embed")
    embed.add_argument("--model", required=True, metavar="ID", help="id of the model, or of its adapter")
    embed.add_argument("--dimensions", type=int, metavar="N", help="numbers of a vector (default: the model's size)")
    embed.add_argument("--pooling", choices=("mean", "last", "cls"), help="tokens that stand for a text")
    embed.add_argument("--input-type", choices=("query", "document"), help="role of the texts in a search")
    embed.add_argument("--prompt-name", metavar="NAME", help="name of the makers' text that goes before each text")
    add_access(embed)


def _run(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    options = {
        "dimensions": arguments.dimensions,
        "pooling": arguments.pooling,
        "input_type": arguments.input_type,
        "prompt_name": arguments.prompt_name,
    }
    given = {name: value for name, value in options.items() if value is not None}
    body = {"model": arguments.model, "input": texts_of(arguments.texts, arguments.file)}
    with project_client(arguments, environ) as client:
        reply = client.post("/embeddings", body | given)
    if arguments.json:
        print_json(reply)
    else:
        for each in sorted(reply["data"], key=lambda item: item["index"]):
            print(json.dumps(each["embedding"]))
    return EXIT_OK
