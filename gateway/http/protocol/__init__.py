"""Connections of clients: uvicorn's protocol, subclassed once, and the bounds on what a client may do with one.

Knows no route and no tenant.
"""
