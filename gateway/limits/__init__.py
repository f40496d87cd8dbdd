"""Limits that hold: a tenant's use is reserved before it happens, over any number of gateways.

A request reserves the worst case and settles what it used. One truth, in PostgreSQL: available = max - settled -
leases. `settled` is moved by a trigger on the ledger, in the transaction that writes the usage, so it is the sum of
the ledger's rows. A lease is what one gateway holds of a limit in a window: what its running requests reserved, what
they used that the ledger does not have yet, and a slice ahead, from which the gateway decides without I/O. The pure
parts are in `gateway.domain.limits`, the queries in `gateway.db.limits`.

- Reserve. `limiter` admits out of slices. A request that does not fit asks PostgreSQL (`keeper`): requests that wait
  meanwhile travel in one exchange, which locks the limits in the order of their ids, reads, decides purely and writes
  absolute amounts, so that the next exchange mends what one of unknown end left. Requests that ask while an exchange is
  under way are answered from its result. Slices are five seconds of the pace, at most 5 % of what is left over all
  gateways. If that is less than a typical request, there are no slices, and every request asks.
- Settle. The transaction that writes usage writes the smaller lease too. Until then the used amount stays in the
  lease.
- Time is PostgreSQL's, carried on by monotonic differences; no wall clock is read here. A request counts in the
  windows in which it was admitted.
- Death. A gateway is suspected after 5 s of silence and forgotten, with its leases, 15 s later: longer than an engine
  takes to end its requests. A gateway that hears nothing for 15 s stops reserving from slices; one that was forgotten
  claims anew what is in use. Time in which the database itself was away counts for nobody. Requests that still run on
  a gateway that was cut off from PostgreSQL alone, and forgotten, are the one thing that can exceed a limit.
- A lost engine may have used more than its gateway saw. The rest of the reservation stays until the engine's own
  record has come, or an engine has been there again for 10 s.
- Alerts are queued by the same trigger, once per window, share and maximum, and sent by whichever gateway claims them
  first (`gateway.webhooks`): one message at a time to each webhook, ten seconds at most, of the answer only the
  status is read.
- The organization's limits show a tenant neither what is used nor what is left: both are other tenants' traffic.
- Bounds of one request and a tenant's share of the engines' queues (`gateway.domain.limits.queue_share`) need no
  account.

`tests/gateway/limits/simulation.py` runs the pure parts against a database of dictionaries with lost replies, deaths,
freezes and jumping clocks. It checks after every step that no limit is exceeded, and at the end that nothing leaked.
"""
