"""Admin API routes of traffic: what the dashboard shows of requests, bounded in what it reads.

`make long-usage` times every request of the dashboard's pages over ten million events.

- `traffic` comes from `traffic_rollups`, which the one consumer of the ledger's queues fills at four levels
  (organization, project, model, in full) and three widths. Times are counted in 64 buckets of a factor 1.21, so that
  percentiles of any sum are within a tenth. Times are three quarters of the stored bytes, in `traffic_times`, and are
  not read for a view without them (`times=false`). `traffic/top` sums counts, and reads times of the results alone.
- `requests` walks an index of the ledger backwards within at most 92 days (`gateway.db.ledger.request_list`). With
  filters it walks only through the minutes and projects that have such requests by the roll-ups, which it finds by
  days and hours first (`gateway.db.ledger.request_spans`): rare requests cost no more than frequent ones.
- `live` looks things up once for everybody who watches (`watchers`), checks their logins every five seconds, and ends
  when the gateway stops.
"""
