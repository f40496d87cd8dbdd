"""What is kept of tenants' content, encrypted and for its time alone: replies for an Idempotency-Key, stored chat
completions, and what all requests say and get, where a project logs it. Knows neither HTTP nor SQL.

What may be kept is a project's setting (`keep_replies`, `store_days`, `log_content_days`). Rows are encrypted in the
gateway, each bound to its place by associated data; PostgreSQL, its own backups and its replicas only ever see
ciphertext. What is not to be shown any more is hidden at once, and deleted in the background.

A backup of Lorikeet's (`lorikeet backup`) holds stored completions as ciphertext and beside it the data folder's
`content.key`, which opens them: it is as secret as they are. Where LORIKEET_CONTENT_KEY is set, that key is in none.
Replies for an Idempotency-Key are in no backup, only that their keys were used; what was logged is in none either.
"""
