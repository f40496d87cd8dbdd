"""Bounds on what connections and clients may do before and while a request is handled: layers over uvicorn's protocol.

Knows no route and no tenant.
"""
