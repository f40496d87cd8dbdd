"""Makes and checks ids of replies that prove to belong to a project's experiments, without any row in the database.

Such an id is a request's, followed by 8 characters of a MAC under the project's key. Votes may name it at once.
"""

from __future__ import annotations

import hmac
from base64 import b32encode
from hashlib import blake2b

MAC_BYTES = 5
MAC_CHARS = 8
"""The number of characters that the MAC adds to an id, in lower-case base32."""

_REQUEST = "req_"
_RESPONSE = "resp_"


def signed_id(key: bytes, request_id: str) -> str:
    """Return a request's id with its MAC: `req_<24><8>`. key: the project's secret (`experiment_keys`)."""
    return request_id + _mac(key, request_id)


def is_signed(key: bytes, signed: str) -> bool:
    """Tell whether an id, of a request or of its reply (`chatcmpl-<24><8>`), was made by `signed_id` with the key."""
    request_id = request_id_of(signed)
    return hmac.compare_digest(signed[-MAC_CHARS:].encode(), _mac(key, request_id).encode())


def request_id_of(signed: str) -> str:
    """Return the id of the request, `req_<24>`, that is in a signed id. The MAC is not checked."""
    return f"{_REQUEST}{random_part(signed)[:-MAC_CHARS]}"


def random_part(shown: str) -> str:
    """Return an id of a reply or request without its prefix, such as `chatcmpl-`; other texts unchanged."""
    _, dash, after = shown.partition("-")
    return after if dash else shown.removeprefix(_RESPONSE).removeprefix(_REQUEST)


def _mac(key: bytes, request_id: str) -> str:
    digest = blake2b(request_id.encode(), key=key, digest_size=MAC_BYTES, person=b"lorikeet vote").digest()
    return b32encode(digest).decode().lower()
