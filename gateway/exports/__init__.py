"""Usage, costs and invoices of a period as files that finance can trust, for a folder, a download or an object store.

    request, produce, totals                            requests; rows of one snapshot through an encoder
    csv_file, parquet_file, focus, stripe, cloudevents  one encoder each, of rows to bytes
    place, object_store, archive                        the places of files: a folder, a bucket, a download
    deliverer, failure                                  due deliveries, and their failures

An export is one file of rows and a manifest with their number, sums and digest. The rows come from one snapshot of
the ledger in a stated total order; the ledger's own sums are taken in the same snapshot, and an export that does not
equal them to the nano fails. The files of a closed period are the same bytes every time, on any machine with the same
library versions.

- One snapshot. An export is a repeatable read on a connection of its own, a batch of rows at a time: memory does not
  grow with the ledger. Downloads have a deadline, by which the connection is closed whether the client reads or not,
  since a snapshot keeps PostgreSQL from tidying up.
- Closed months. Triggers keep, when a month is closed, what rows do not hold and may change later: names, currency and
  Stripe's customers. Nothing in a file of a closed month depends on the moment.
- Whole or absent. A file shows under its name when it is complete, and its manifest after it. Names depend on the
  question alone, so that a second attempt replaces the first.
- Deliveries. One gateway at a time holds an advisory lock. A day's sums, roll-ups and their queue together, are noted
  before the day is delivered, and compared with the present sums once an hour for 62 days: rows that come in between
  cause one delivery too many, never one too few. An error that ends one delivery does not stop the next one; the
  customer is told the class of the failure, and the log has the details. An endpoint's address is checked before each
  attempt, but the library resolves the name again. If the name leads to a private address by then, TLS protects it: a
  server without a certificate for the name is refused.
"""
