"""Batches: files of requests that run in what interactive work leaves free, each line once.

Knows neither the fields of an API nor how a line is answered, which it asks a `LineRunner` for.

    service      batches as their projects see them: made, shown, listed, cancelled
    validation   an input file through the process that checks it (`validator`), to rows
    lines        lines of an input file, read again when they run
    dispatcher   takes batches that nobody works on, and keeps their leases
    running      the lines of one batch: begun as engines want more, stored with the counts
    ending       results to the output and the error file
    feed         the number of lines that the engines want now, and the batches whose turn it is
    deadlines    whether a batch is about to miss its deadline

    validating -> in_progress -> finalizing -> completed | expired
    validating -> failed; validating, in_progress -> cancelling -> cancelled

- One gateway works on a batch, under a lease of 8 s; a gateway that takes it over gets the next fencing number, and
  begins the running lines anew. Every change locks the batch's row under that number.
- Places. A gateway checks two files, runs the lines of 16 batches and writes the files of four at once: a large file
  holds up nobody's lines.
- Once. A line's request has the same id however often it is begun. Its result comes in one transaction with the counts
  of its batch, for the attempt that the line is at, and for no other. The usage of earlier attempts is the operator's:
  the last beginning supersedes them in the ledger, whichever gateway they ran in. So is what lines used that were begun
  and have no result when their batch ends, and what lines used that failed after an earlier beginning; the ledger knows
  them by `disowned_lines`.
- Bounds. 50,000 lines and 200 MiB a file; a line has as many bytes as a request may have. A gateway has as many lines
  in flight as the engines' heartbeats give it credit for, four for each pool of another maker's servers, and reads
  one piece of the input file at a time.
- Turns. A project gets as much work at a pool as any other that wants it there, over all gateways: they share what
  they charged each second (`gateway.domain.batches.turns`).
- Deadlines. Projects have places by turns as long as all batches would be done an hour before they expire, served one
  after the other at the pace of the last minutes. Else the batch that expires first has the places, all but one of 50,
  and its lines go first in the engine.
- Limits of a day, a month and of cost are reserved line by line; one that is reached lets the batch rest a while.
  Faults of ours are tried three times; what the client got wrong is the line's error at once.
- Ids of the output and the error file are chosen with the batch. They are made in the transaction that ends it, so a
  batch that is ended twice has one of each.
- A restored backup cancels what it thinks is under way: lines may have run since, and been billed.
"""
