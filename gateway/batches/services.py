"""The services that work on batches uses: database, files, encryption, the runner of lines, metrics."""

from __future__ import annotations

import msgspec

from gateway.batches.feed import Feed
from gateway.batches.runner import LineRunner
from gateway.db.pool import Database
from gateway.files.content import FileContent
from gateway.files.service import Files
from gateway.observability.batch_metrics import BatchMetrics
from gateway.support.cipher import Cipher
from gateway.support.paced_calls import PacedCalls


class BatchServices(msgspec.Struct, frozen=True, kw_only=True):
    """The services that work on batches uses, the same for all batches of a gateway."""

    database: Database
    files: Files
    output: FileContent
    """The writer of output and error files, whatever room the project has: their bytes were counted as they came."""
    cipher: Cipher
    runner: LineRunner
    feed: Feed
    max_line_bytes: int
    turns: PacedCalls
    """The turns in which lines of all batches begin, and end at the engines: engines want and end many at once."""
    metrics: BatchMetrics
