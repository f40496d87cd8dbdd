"""Files of tenants: the inputs and outputs of batches, and other files of clients. Knows neither HTTP nor SQL.

    pieces, bucket  the file store: a folder or a bucket that holds encrypted pieces by name
    content         a stream of bytes to sealed pieces, and back
    service         files: made, shown, read and deleted
    uploads         files that come part by part
    sweeper         deletes the pieces that no file has any more

A file is made of parts, one for a file that came in one request, and a part of pieces of 1 MiB. Each piece is encrypted
under its project's key and bound to its place, so that none can be moved, left out or read elsewhere; the file's name
is encrypted in its row. A file is never in memory as a whole.

- Whole or absent. A part has a row before its first piece is written. The row of the file is made in the transaction
that gives it its parts, after the last piece is durable. The pieces of a request that ended early are deleted an hour
later at most.
- Bounds. Files count for the bytes of content of their project (`LORIKEET_MAX_CONTENT_BYTES`) from their first piece
on, a small one as 1 KiB; nothing is taken once the disk's reserve is reached.
- Retention. A file has its own time, which its client gives; without one it stays until it is deleted, unless it is the
input or the output of a batch (30 days). The project's `store_days` does not apply to files: nobody uploads one without
meaning to store it.
- Deleted is hidden at once. The row goes when nothing reads the file any more, the pieces within a minute of that. A
backup holds the pieces as they are, encrypted; so it is as secret as its `content.key`.
"""
