"""Backup and restore of an installation: database, journals and adapter store, to one folder and back.

Taken while everything runs, in this order:

 1. The journals. A final goes from the journal to the database, and leaves the journal only after that. One that is
    in both is billed once, since replay is idempotent; one that is in neither is lost. Copied before the snapshot,
    whatever was journaled by then is in the copy, or in the database already. The other way round, a final could go
    over in between and be in neither. All of them as of one moment, since a gateway takes over what another left.
 2. The adapter store, as far as it is there. Content never changes under its digest.
 3. The pieces of tenants' files, encrypted as they are.
 4. The database, in one snapshot.
 5. The adapters that the snapshot names and that were not there before, and pieces that came meanwhile. A
    restore puts back those that the database names.
 6. The keys: the operator's, the demo's, the first login, and the content key of the data folder.
 7. The manifest with the digest of every file. It makes the backup whole.

Journals are copied as of the moment at which every listed file is open, since usage also moves between journals. A
restore owns the locks of all journals while it works and only adds to them; until the database is back, a marker keeps
servers from starting.

Replies stored for an Idempotency-Key are left out, but not which keys were used. Stored completions are in the
database's file as ciphertext, and their key is in the same folder: who has a backup reads them, unless the key came
from LORIKEET_CONTENT_KEY, which no backup holds.
"""
