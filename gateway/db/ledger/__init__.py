"""SQL of the usage ledger: rows that are only added, priced as they are written, and the sums that reports read.

- One row per attempt. The key is (request, attempt, revision, created_at). created_at is in the meter tag, the same
  in every copy, so copies meet in one partition. Revision 0 is the attempt's row; a better count that comes later
  adds the difference as the next revision. `usage_attempts` shows one row per attempt. Triggers refuse every change
  of a row, and every row of a closed month.
- Order of locks. A transaction that writes the ledger takes it in ROW EXCLUSIVE mode before reading anything. A
  transaction that closes a period, sets prices, makes a project prepaid or makes a limit locks writers out first
  (`standstill`), so that it sees all of a writer's rows or none. It waits for that lock a second at most, since writers
  queue behind it; then its request fails with 503. A new limit counts the usage of its window so far from roll-ups and
  their queue.
- Partitions. There is one for each day, and planning a query over all of them locks each with its indexes. So queries
  say between which instants their rows were created (`span_of_period` tells it of a month, late rows included) and
  are planned anew (`replan`). Queries over all partitions, such as a backup's, need `max_locks_per_transaction` of
  1024: the embedded server has this value, and a gateway warns at its start of another server that has less.
- Sums. The transaction that writes rows also queues their amounts in `rollup_queue`; another transaction takes them
  from the queue and adds them to `usage_rollups` (minute, hour, day) and `period_sums`: sums are exact in whatever
  order transactions commit. One bookkeeper of all gateways works at a time. Reports read sums alone, and lag by a
  second.
"""
