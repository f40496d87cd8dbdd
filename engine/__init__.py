"""The engine: one process per base model that turns token ids into token ids.

It knows nothing about HTTP, text, money or SQL, and of a tenant only an opaque id and a weight.
"""
