"""Routing: finds the target of a request's model string.

A model string is `base`, `base:name`, `base:name@3` or an alias. It is resolved once per request, from a dictionary
that the change feed keeps up to date. Limits, prices and the ledger know an adapter as `base:name`, whichever way the
request named it. A string that another tenant owns is refused exactly like one that does not exist.

A name may stand for a routing policy (`policies`): `planner` makes a plan of it for each request, by the facts about
its targets and by the speeds in `measured`. `adapter_fits` compares adapters with another base: those that fit go with
their pool when it changes to that base.
"""
