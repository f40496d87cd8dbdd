"""`lorikeet batch`: begin a batch of a file, watch it, read its results, and cancel it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.cli.batches.access import add_access, project_client
from gateway.cli.errors import EXIT_OK, EXIT_OPEN, CommandFailed, WaitingEnded
from gateway.cli.output import STANDARD_OUTPUT, add_out_flags, check_out, print_result, print_table, utc, write_out
from gateway.cli.path_parts import id_part
from gateway.cli.progress import Progress
from gateway.cli.verbs import add_group, add_verb
from gateway.domain.batches.endpoints import ENDPOINTS

if TYPE_CHECKING:
    from gateway.cli.chat.inference import InferenceClient
    from gateway.cli.output import Verbs

POLL_S = 0.5
ENDED = ("completed", "failed", "expired", "cancelled")


def register(verbs: Verbs) -> None:
    """Add `lorikeet batch` to the command line."""
    actions = add_group(
        verbs,
        "batch",
        "Run files of requests within a day, in what other requests leave free, with an API key of the tenant.",
    )
    create = add_verb(
        actions,
        "create",
        _create,
        "begin a batch",
        "Store a file of requests, one JSON object a line, and begin a batch of it; print the batch's id.",
        has_json=False,
    )
    create.add_argument("path", type=Path, metavar="PATH", help="file of requests, whose name ends in .jsonl")
    create.add_argument(
        "--endpoint", choices=ENDPOINTS, default=ENDPOINTS[0], help="endpoint of all requests (default: %(default)s)"
    )
    create.add_argument("--wait", action="store_true", help="wait until the batch has ended, and show its progress")
    status = add_verb(
        actions, "status", _status, "show a batch", "Show a batch; exit with 4 where it has not ended.", has_json=False
    )
    status.add_argument("--wait", action="store_true", help="wait until the batch has ended, and show its progress")
    listing = add_verb(
        actions, "list", _list, "list batches", "List a tenant's batches, the newest first.", has_json=False
    )
    listing.add_argument("--limit", type=int, default=20, metavar="N", help="most batches to list (default: 20)")
    results = add_verb(
        actions,
        "results",
        _results,
        "download the results of a batch",
        "Write the output of a batch that has ended to a file, and what failed to another file beside it. For a batch "
        "that failed, say why, and exit with 1.",
        has_json=False,
    )
    add_out_flags(results, "path to write the output to", required=True)
    cancel = add_verb(
        actions,
        "cancel",
        _cancel,
        "cancel a batch",
        "Cancel a batch. Requests that were answered stay in its output.",
        has_json=False,
    )
    for parser in (status, results, cancel):
        parser.add_argument("id", metavar="BATCH_ID", help="id of the batch")
    for parser in (create, status, listing, results, cancel):
        add_access(parser)


def _create(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    with project_client(arguments, environ) as client:
        try:
            with arguments.path.open("rb") as content:
                file = client.upload(arguments.path.name, content, {"purpose": "batch"})
        except OSError as error:
            raise CommandFailed(f"{arguments.path}: {error.strerror}") from None
        asked = {"input_file_id": file["id"], "endpoint": arguments.endpoint, "completion_window": "24h"}
        batch = client.post("/batches", asked)
        if arguments.wait:
            return _print_batch(arguments, _wait_until_ended(client, batch["id"], quiet=arguments.json, is_new=True))
    return print_result(arguments, batch, batch["id"])


def _status(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    with project_client(arguments, environ) as client:
        if arguments.wait:
            return _print_batch(arguments, _wait_until_ended(client, id_part(arguments.id), quiet=arguments.json))
        return _print_batch(arguments, client.get(f"/batches/{id_part(arguments.id)}"))


def _wait_until_ended(client: InferenceClient, batch_id: str, *, quiet: bool, is_new: bool = False) -> dict[str, Any]:
    """Wait until a batch has ended, and return it.

    is_new: True: print first that the batch is created. quiet: True: no progress is shown.

    Raises WaitingEnded: when Ctrl-C is pressed.
    """
    progress = Progress("running", quiet=quiet, unit="lines")
    said: str | None = None
    try:
        if is_new:
            print(f"{batch_id} is created", file=sys.stderr, flush=True)
        while True:
            batch = client.get(f"/batches/{batch_id}")
            if batch["status"] in ENDED:
                return batch
            counts = batch["request_counts"]
            wait = batch.get("waits_for")
            if wait is not None and wait["code"] != said:
                print(f"{batch_id} waits: {wait['message']} ({wait['code']})", file=sys.stderr, flush=True)
            said = None if wait is None else wait["code"]
            progress.show(counts["completed"] + counts["failed"], counts["total"] or None)
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        raise WaitingEnded(f"{batch_id} goes on; `lorikeet batch cancel {batch_id}` ends it") from None
    finally:
        progress.done()


def _print_batch(arguments: argparse.Namespace, batch: dict[str, Any]) -> int:
    """Print a batch, and return the exit code that its status stands for."""
    counts = batch["request_counts"]
    lines = [
        f"{batch['id']} {batch['status']}: {counts['completed']} completed, {counts['failed']} failed, "
        f"{counts['total']} in all; {batch['usage']['total_tokens']} tokens"
    ]
    lines += [f"  {fault}" for fault in _faults(batch)]
    if (wait := batch.get("waits_for")) is not None:
        lines.append(f"  no line can run now: {wait['message']} ({wait['code']})")
    print_result(arguments, batch, "\n".join(lines))
    if batch["status"] not in ENDED:
        return EXIT_OPEN
    return 1 if batch["status"] == "failed" else EXIT_OK


def _faults(batch: dict[str, Any]) -> list[str]:
    """Return the faults of a batch's file, each in words."""
    found = []
    for error in (batch["errors"] or {"data": []})["data"]:
        where = "" if error["line"] is None else f"line {error['line']}: "
        found.append(f"{where}{error['message']} ({error['code']})")
    return found


def _list(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    with project_client(arguments, environ) as client:
        found = client.get("/batches", limit=arguments.limit)
    if arguments.json:
        return print_result(arguments, found, "")
    header = ("ID", "STATUS", "COMPLETED", "FAILED", "TOTAL", "ENDPOINT", "CREATED")
    print_table(header, [_row(batch) for batch in found["data"]])
    return EXIT_OK


def _row(batch: dict[str, Any]) -> tuple[object, ...]:
    counts = batch["request_counts"]
    numbers = (str(counts["completed"]), str(counts["failed"]), str(counts["total"]))
    return (batch["id"], batch["status"], *numbers, batch["endpoint"], utc(batch["created_at"]))


def _results(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    out: Path = arguments.out
    is_printed = out == STANDARD_OUTPUT
    errors_path = out.with_name(f"{out.stem}.errors{out.suffix}")
    written: dict[str, Any] = {"output": None, "errors": None}
    for path in (out,) if is_printed else (out, errors_path):
        check_out(arguments, path)
    with project_client(arguments, environ) as client:
        batch = client.get(f"/batches/{id_part(arguments.id)}")
        if batch["status"] not in ENDED:
            raise CommandFailed(f"the batch is {batch['status']}: `lorikeet batch status --wait` waits for its end")
        if batch["status"] == "failed":
            raise CommandFailed(f"the batch failed, no line ran: {'; '.join(_faults(batch)) or 'no reason is known'}")
        if is_printed:
            return _print_output(client, batch)
        for kind, file_id, path in (
            ("output", batch["output_file_id"], out),
            ("errors", batch["error_file_id"], errors_path),
        ):
            if file_id is not None:
                write_out(path, client.download(file_id))
                written[kind] = str(path)
    text = "\n".join(f"wrote {path}" for path in written.values() if path) or "the batch has no results"
    return print_result(arguments, written, text)


def _print_output(client: InferenceClient, batch: dict[str, Any]) -> int:
    """Print the output of a batch, and on standard error the command that shows the lines that failed."""
    if batch["output_file_id"] is not None:
        write_out(STANDARD_OUTPUT, client.download(batch["output_file_id"]))
    if batch["error_file_id"] is not None:
        print(
            f"lorikeet: {batch['request_counts']['failed']} lines failed: "
            f"`lorikeet file get {batch['error_file_id']} --out -` shows them",
            file=sys.stderr,
        )
    return EXIT_OK


def _cancel(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    with project_client(arguments, environ) as client:
        batch = client.post(f"/batches/{id_part(arguments.id)}/cancel", {})
    return print_result(arguments, batch, f"{arguments.id} is {batch['status']}")
