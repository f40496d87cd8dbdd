"""The content of tenants that is kept, encrypted and only for its time.

This content is: replies for an Idempotency-Key, stored chat completions and responses, and, for projects that log it,
the content of all requests and replies. Knows neither HTTP nor SQL.

    idempotency, watches, unanswered_claims   whose turn it is, who waits, and claims that were never answered
    stored_chats                              `store` of chat completions
    stored_responses                          `store` of responses, each with its own turn, and what they go on from
    conversations                             items that responses go on from and add to, one turn behind the other
    request_log, transcript                   what a project logs of all its requests, collected while they run;
                                              `gateway.text.redact` takes out what identifies people
    keys, resealing                           the source of content keys; secrets of the operator's side follow them
    writes, keeper, purge                     writes that a reply waits for a moment; content whose time is over

Each project sets what may be kept (`keep_replies`, `store_days`, `log_content_days`). Rows are encrypted in the
gateway, each bound to its place by associated data; PostgreSQL, its own backups and its replicas only ever see
ciphertext. Content that is not to be shown any more is hidden at once, and deleted in the background.

- One execution. The request whose `INSERT ... ON CONFLICT DO NOTHING` creates the key's row is the one that runs. Its
  gateway touches the row every 5 s. If the last touch is a minute ago, and a database that answers shows no new one for
  15 s more, the request counts as lost: it may have been billed, so it is not run again, but its own gateway may still
  store the reply. All requests of a gateway that wait for the same reply ask the database together. An API key does not
  get replies to requests of another API key.
- Bounds. Per gateway: 64 MiB of requests that wait, 256 MiB of replies that are recorded or still being sent, a
  quarter for each project at most. Replays have a pace per project, by size.
- Refused or run. Errors before admission leave the key free, and so does the engine's refusal of the only prompt. A
  later failure is stored as the key's reply, with `x-should-retry: false`: of several prompts one may have run.
- Order. A reply's last message goes out once its row is written, or after a second: a client that has seen the end
  finds the row. A database that is away neither fails a reply nor holds it up; the write is tried for a minute, then
  counted as lost (`lorikeet_content_lost_total`). A recorded reply goes on at the engine's pace, whether its client
  reads, is slow or left.
- Responses. A row holds the items of one turn and the id of the response before it: a conversation of n turns is n
  rows, read by one recursive query within bounds. An item's id leads to its response. Unlike for other writes, a reply
  waits up to two seconds for the write of its response, and says whether it was stored, since the client is to go on
  from it.
- At rest. A row's project, table, column and id are GCM's associated data, so none can be moved; the row names its
  key. Metadata is found by keyed digests of its pairs. An Idempotency-Key is there as its SHA-256 alone. A gateway
  logs at its start and daily how many rows need a key that it lacks.
- Logging. A request of a project that does not log content costs one comparison (`Principal.log_content_days`).
  Otherwise its items are noted as they pass, 128 Ki characters each way, and written when the request ends, with a
  bound of their own, so that logging takes no room from replies and stored completions. Redacting and sealing run in a
  thread, four rows at a time. Text goes through the rules before JSON and before it is cut to 64 KiB; where reading
  itself ended, the last 1,024 characters are left out, which may be half of something.
- Readers. `content.write`, to say for how long content is kept, is with both sides; `content.read` goes with the
  roles of owner, and of a project's admin; no scope of a key has it. A person who may give such a role need not have
  it, so that operators can let people in; that, and each reading, is in the audit log.
- Retention is a setting of the project, held to in the transaction that writes (the project's row is locked) and by
  every read, as `purged_at` is: so nothing shows, whichever version purges. The keeper deletes what is hidden, 1,000
  rows at a time. Logged content also has its own time, so that more days do not keep it longer than was said, and
  what was logged before logging was turned off stays hidden (`contents_from`).

A backup of Lorikeet's (`lorikeet backup`) holds stored completions as ciphertext and beside it the data folder's
`content.key`, which opens them: it is as secret as they are. If LORIKEET_CONTENT_KEY is set, no backup has that key.
Replies for an Idempotency-Key are in no backup, only that their keys were used; what was logged is in none either.
"""
