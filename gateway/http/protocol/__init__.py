"""Bounds on connections and clients before and while a request is handled: layers over uvicorn's protocol.

Knows no route and no tenant.
"""
