"""Metering: usage events from the engine's exact counts to the ledger.

    format                 the records and their frames: magic, length, CRC-32, MessagePack
    unsettled              the sum of records: running requests, and ended ones that are not in the ledger
    folder                 folders, their locks, segments
    journal                one process's journal: appends, group sync, new segments
    replay                 reads the records that a process that is gone left in its folder
    recovery               takes these records into this process's journal
    acknowledgements       which engines to tell once a record is on disk
    copier                 copies ended requests from the journal to the ledger, again until the ledger has them
    ledger                 the one transaction that writes them
    rebilling              bills all usage in journals again after the database was put back to an earlier moment
    open_requests          tells PostgreSQL how many requests would be lost with this journal
    reconcile              compares the counts of engines with the ledger
    meter                  takes the usage that backends report
    service                all parts put together, started and stopped

- Order: record, then effect. `write(2)` of a message's counts comes before any of its tokens goes to a client, so a
  killed gateway has billed what its clients saw. Groups are synced in a thread, 10 ms apart at most: that is what a
  machine can lose. An engine is acknowledged after the sync, not after PostgreSQL, so PostgreSQL may be away.
- Segments. A new one begins with all that still matters, and once it is on disk the older ones go; it may grow to
  three times that. The same step mends a failed write or sync, since what the old file holds does not matter any
  more. Segments that nothing needs stay as `.spent` up to LORIKEET_JOURNAL_SPENT_BYTES, for `rebilling`.
- Bound. With LORIKEET_JOURNAL_BYTES of usage that the ledger does not have, or with a journal that cannot be written,
  new requests get 503; usage of running requests is kept in memory and recorded once that works.
- Replay. Ends go to the ledger. A request without an end becomes an `error` row with its last count, which the
  engine's own count, should it come, corrects. A torn tail is cut; damage before that is reported, and the segment
  kept aside. A folder of another database, or of a later format, is left alone; one that cannot be read is passed
  over and tried again.
- Deaths. Client: the engine's count at the abort is billed. Engine: the last count. Gateway: the engine's count,
  which the next gateway gets. Both: the last count, on replay. Database: nothing is lost. Folder and gateway: what
  the engine still holds (at most 100,000 records for a day, more are dropped and counted); the rest is
  `lorikeet_unbilled_requests`. `tests/faults/` kills them all: client-seen <= billed <= produced.
- Discarded tokens. Tokens that ran past a stop string are `discarded_tokens`: recorded, not billed.
- Reconciliation. An engine counts what it ends; the transaction that writes the ledger counts what it takes of each
  engine (`engine_usage`). The difference is a metric and a route, and 0 at rest. A lost journal is named there until
  it is replayed, or an operator writes it off.
- Stop. Streams end, the journal is synced and engines know it, then it is copied; usage that the ledger does not take
  in ten seconds waits for the next start.
"""
