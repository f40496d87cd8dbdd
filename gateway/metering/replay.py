"""Reads the usage that a process that is gone left in a journal's folder, as far as the ledger may not have it yet.

Knows neither the ledger nor this process's own journal. Reads each segment, of some megabytes, as a whole.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import msgspec
import structlog

from gateway.metering.folder import DAMAGED_SUFFIX, JournalFolder
from gateway.metering.format import VERSION, Begun, Ended, read_frames
from gateway.metering.unsettled import Unsettled, made_up_end

log = structlog.get_logger(__name__)


class Unreadable(Exception):
    """The error for a folder of another database, or of a Lorikeet version whose format this one cannot read.

    It is left as it is.
    """


class Replayed(msgspec.Struct, frozen=True):
    """The usage found in a journal's folder."""

    ended: list[Ended]
    """The usage to write to the ledger, including what the ledger may have already."""
    journal_ids: list[str]
    """The ids of the journals whose usage this is: those of the folder, and those that they adopted."""
    num_made_up: int
    """The number of unfinished requests for which an end was made up."""
    num_unseen: int
    """The number of requests among `num_made_up` whose clients had received nothing."""
    num_damaged: int
    """The number of segments with bytes before their end that are no valid records; they are kept aside."""


def replay(folder: JournalFolder, database_id: str) -> Replayed:
    """Read the journals of a folder, and return the usage that they hold.

    Raises Unreadable: when a journal has another format or belongs to another database.
    Raises OSError: when a file cannot be read.
    """
    unsettled, journal_ids, num_damaged = Unsettled(), dict[str, None](), 0
    contents = {path: read_frames(path.read_bytes()) for path in folder.segments()}
    begun = [record for each in contents.values() for record in each.records if isinstance(record, Begun)]
    for each in begun:
        if each.version != VERSION:
            raise Unreadable(
                f"the journal {folder.path} has format {each.version}; this gateway reads format {VERSION}"
            )
        if each.database_id != database_id:
            raise Unreadable(f"the journal {folder.path} belongs to another database (installation {each.database_id})")
        journal_ids[each.journal_id] = None
    for path, each_contents in contents.items():
        for record in each_contents.records:
            unsettled.apply(record)
        if each_contents.num_torn_bytes:
            log.warning("journal_torn_tail", segment=str(path), num_bytes=each_contents.num_torn_bytes)
        if each_contents.damaged:
            log.error("journal_damaged", segment=str(path), byte_ranges=each_contents.damaged)
            _keep_aside(path)
            num_damaged += 1
    if unsettled.num_strays:
        log.error("journal_counts_without_request", folder=str(folder.path), num_counts=unsettled.num_strays)
    running, now_ns = list(unsettled.running.values()), time.time_ns()
    return Replayed(
        [*unsettled.ended.values(), *(made_up_end(each, now_ns) for each in running)],
        list(journal_ids | unsettled.adopted),
        num_made_up=len(running),
        num_unseen=sum(not (each.prompt_tokens or each.completion_tokens) for each in running),
        num_damaged=num_damaged,
    )


def _keep_aside(path: Path) -> None:
    """Copy a damaged file to a name made from its content, so that a second try makes no second copy.

    The file is copied rather than linked, since not every file system has links.
    """
    content = path.read_bytes()
    path.with_name(f"{path.stem}-{hashlib.sha256(content).hexdigest()[:16]}{DAMAGED_SUFFIX}").write_bytes(content)
