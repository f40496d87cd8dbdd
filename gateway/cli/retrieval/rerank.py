"""`lorikeet rerank`: texts by their relevance for a query, the most relevant first."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.batches.access import add_access, project_client
from gateway.cli.errors import EXIT_OK
from gateway.cli.output import print_json, print_table
from gateway.cli.retrieval.texts import add_texts, texts_of
from gateway.cli.verbs import add_command

if TYPE_CHECKING:
    from gateway.cli.output import Verbs

SHOWN_CHARS = 80


def register(verbs: Verbs) -> None:
    """Add `lorikeet rerank` to the command line."""
    rerank = add_command(
        verbs,
        "rerank",
        _run,
        "Rank texts by relevance for a query, the most relevant first, with a model that was made "
        "to rank. The texts are arguments and the lines of a file, or else lines of a pipe. The server and the key "
        "come from the flags, from LORIKEET_URL and LORIKEET_API_KEY, or from the demo in the data folder.",
        has_json=False,
    )
    rerank.add_argument("query", metavar="QUERY", help="text that the documents are ranked for")
    add_texts(rerank, "documents", "documents to rank")
    rerank.add_argument("--model", required=True, metavar="ID", help="id of a model that ranks, or of its adapter")
    rerank.add_argument("--top-n", type=int, metavar="N", help="most documents to show (default: all)")
    rerank.add_argument(
        "--instruction", metavar="TEXT", help="words that say which documents are relevant, for models that read them"
    )
    rerank.add_argument("--raw-scores", action="store_true", help="show scores as the model gives them, not 0 to 1")
    rerank.add_argument(
        "--max-tokens-per-doc", type=int, metavar="N", help="first tokens of a document that count (default: all)"
    )
    add_access(rerank)


def _run(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    documents = texts_of(arguments.documents, arguments.file)
    options = {
        "top_n": arguments.top_n,
        "instruction": arguments.instruction,
        "raw_scores": arguments.raw_scores or None,
        "max_tokens_per_doc": arguments.max_tokens_per_doc,
    }
    given = {name: value for name, value in options.items() if value is not None}
    body = {"model": arguments.model, "query": arguments.query, "documents": documents, "return_documents": True}
    with project_client(arguments, environ) as client:
        reply = client.post("/rerank", body | given)
    if arguments.json:
        print_json(reply)
    else:
        rows = [
            (f"{each['relevance_score']:.6g}", each["index"], _shortened(each["document"]["text"]))
            for each in reply["results"]
        ]
        print_table(("SCORE", "PLACE", "DOCUMENT"), rows)
    return EXIT_OK


def _shortened(text: str) -> str:
    """Return a text on one line, cut where it is long, without characters that a terminal would act on."""
    line = "".join(each if each.isprintable() else " " for each in text)
    return line if len(line) <= SHOWN_CHARS else f"{line[:SHOWN_CHARS]}…"
