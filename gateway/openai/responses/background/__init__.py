"""Responses that run in the background: the row comes before the reply, events leave once they are durable.

    request   what is kept of a request, so that any gateway can run it
    queue     POST /v1/responses with `background`: queued, then answered with the response or the stream of its log
    runner    takes responses that nobody runs, a few at a time, and holds the leases of those that it runs
    running   one response's run: its events go to the log under its fencing number, and its end is one transaction
    follow    the log as a stream, from any number on, from any gateway

A gateway that dies loses its leases, and another one takes the response. If the model had said nothing yet, the
response runs again; else it ends as failed with the text so far, since what a client has seen cannot be unsaid.
"""
