"""Metrics, log lines and remembered refusals: everything an operator sees of a running gateway.

Metrics have two sources. `engine_metrics` exports all of `EngineStats`, which every heartbeat brings: what runs and
waits, the cache, preemptions, a histogram of step times (a step is the pause between two tokens of a stream), both
tiers of adapters, grammars, drafts, the busiest tenants. `request_metrics` counts each request once it is in the
ledger: time in the queue, for an adapter, to the first token, per token, by model and by tenant, whose labels are
bounded. gateway/OPERATE.md tells which metric to look at for which trouble.

`refusals` counts refused requests in memory as replies go out, those of one kind and minute in one entry, and writes
the entries each second. An entry holds nothing that a request said: messages about wrong requests, which may repeat a
request's words, are left out.
"""
