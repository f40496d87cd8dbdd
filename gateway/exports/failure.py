"""Reasons why a delivery failed: a class of failure for its organization, details for the operator's log.

The person who sets a destination chooses the server that is spoken to, so the server's answers are not shown to them.
"""

from __future__ import annotations

import socket

from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from gateway.db.pool import FAILURES
from gateway.exports.produce import ExportFailed
from gateway.exports.request import WrongExport
from gateway.support.names import why_no_address
from gateway.support.outbound import NotPublic

MAX_DETAIL_CHARACTERS = 500

_IN_WORDS: tuple[tuple[tuple[type[Exception], ...], str], ...] = (
    ((PermissionDeniedError, UnauthenticatedError), "the destination refused the access key"),
    ((BaseError,), "the destination could not be reached, or did not answer as S3 does"),
    ((FileNotFoundError,), "the destination has no bucket of this name"),
    ((TimeoutError, ConnectionError), "the delivery took too long, or a connection was lost"),
)


def in_words(error: Exception) -> str:
    """Return one of a few sentences for an error: the error's own text may come from a stranger."""
    if isinstance(error, NotPublic):
        return f"{error}; the setting LORIKEET_PRIVATE_WEBHOOKS allows destinations at private addresses"
    if isinstance(error, (ExportFailed, WrongExport)):
        return str(error)  # our own words
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return f"the host name of the endpoint {why_no_address(error)}"
    for kinds, words in _IN_WORDS:
        if isinstance(error, kinds):
            return words
    if isinstance(error, OSError):
        return f"the file could not be written: {error.strerror}"
    if isinstance(error, FAILURES):
        return "the database failed"
    return "an unexpected failure; the server's log has the details"


def in_detail(error: Exception, secret: str | None) -> str:
    """Return an error's message on one line, without notes of libraries, and with the secret taken out."""
    text = " ".join(str(error).partition("\n\n")[0].split())
    text = f"{type(error).__name__}: {text}"
    return (text.replace(secret, "***") if secret else text)[:MAX_DETAIL_CHARACTERS]
