"""Traces: the context that requests bring and pass on, the choice of what is traced, spans, and how spans are sent.

The names of OpenTelemetry's conventions stand in `names` alone, with their version. Spans hold times, counts, ids and
names of models, never a prompt or an answer. Why none of OpenTelemetry's own libraries is used: its SDK takes 52 µs of
processor time for the three spans of a request and 187 µs with the encoding, where this room takes a third of that
(`gateway/LOG.md`). A test reads what is sent with OpenTelemetry's own schema.
"""
