"""The OpenAPI 3.1 document of every route, made of the routes' declarations; the same for everybody.

Knows how routes are declared, and nothing about their work.
"""

from gateway.reference.openapi.document import document

__all__ = ["document"]
