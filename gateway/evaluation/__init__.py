"""Feedback on replies, and arms of end users by OpenFeature's remote evaluation (OFREP), for applications.

    wire, query, handler  POST, GET and DELETE of /v1/feedback
    votes                 votes into tables, exactly once and in whatever order they come
    flags                 arms of a unit, as they would be served now
    ofrep, ofrep_wire     /ofrep/v1/evaluate/flags

Knows HTTP and the wire; nothing of statistics.
"""
