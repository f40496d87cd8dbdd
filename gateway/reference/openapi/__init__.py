"""The OpenAPI 3.1 document of every route, made of what the routes declare about themselves; the same for everybody.

Knows how routes are declared, and nothing about what they do.
"""

from gateway.reference.openapi.document import document

__all__ = ["document"]
