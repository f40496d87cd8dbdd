"""The life of adapters: content that comes from outside becomes a version that answers, and goes away again.

    intake, importer, uploads    the ways in; inspection_queue, cooldown, presence: in which order, and when not
    fetch, download, watcher     content that the server fetches itself, and the watched folder
    workspace                    folders in which content is judged
    prober, residency            versions tried by engines, and kept on them
    collector, verify            content that nobody refers to, and content that is not what it was

- Inspection. The gateway opens strangers' files and reads none: `adapters.sandbox` does, in a confined process, into
  copies that were opened beforehand. Engines take the digest of the very bytes they load, so a forged report loads
  nothing.
- Pauses. On a machine one adapter is inspected at a time, the projects in turn, since an inspection takes processor
  time from running streams. After three refusals in a row, by inspection, limit or engine, the project pauses for ten
  seconds, and twice as long after each further one, up to five minutes, until an adapter is accepted or ten minutes
  pass. Refusals are stored in the database, so a pause holds on all gateways. A pause is checked before a body is
  read, and again when an inspection's turn has come, with the project locked and its other inspections counted.
  Uploads in pieces keep their bytes meanwhile.
- Imports say how content came until it is a version, rejected or failed. The gateway that works on an import touches
  it; one without a sign of life has failed, or is fetched by another gateway.
- Versions go `inspected -> probed -> ready | rejected` and `ready -> retired -> deleted`. Triggers hold them to that
  and let only a ready one become current. Each wish to promote has a number, so a version that becomes ready late
  undoes nothing that was wished after it. Probes are claimed, and taken over from gateways that died.
- Store and tables. Content is kept first and referred to then, in a transaction in which nothing leaves the store. A
  death in between leaves content that nobody refers to. One gateway of all looks through the store and removes such
  content when it has been unused for LORIKEET_ADAPTER_GRACE_SECONDS, since running requests may still need it, and
  only in a transaction in which nobody refers to anything new. Nothing is skipped because content is there already,
  so the time of an upload tells nothing; content under a digest is read again whenever it is kept, so a new upload
  heals damage. Workspaces are locked while they are used, and those of dead processes are swept.
- Sources are compared with the operator's list part by part. A redirect is judged anew, and connections go to the
  address that was judged. One gateway of all watches the folder, whose subfolders are bound to projects' ids when
  they are first seen; it opens everything below relative to what it opened before, never through a link, and takes in
  the copy it hashed.
"""
