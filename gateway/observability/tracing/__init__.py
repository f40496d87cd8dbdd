"""Spans of requests, from the moment that one begins to the collector: `trace` has one request's, `exporter` all.

The rooms that do the work say when a span begins and ends and what it says (`gateway/http/server_span.py`,
`gateway/pipeline/model_call.py`). An engine makes no spans: its last message tells when it took the request and how
long each of its parts took, and the gateway makes the engine's span of that. So an engine needs no library, no
collector that it can reach, and nothing to wait for; it sends fifteen bytes more of a request that is traced.
"""
