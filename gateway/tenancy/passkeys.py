"""Passkeys (WebAuthn): a challenge out, its signature in.

User verification is required, so a passkey counts as two factors.

A challenge is five minutes old at most, good once, and bound to its purpose and to its holder: the login that asked for
it to add a passkey, or the browser that asked for it to log in. Challenges are sealed rather than stored, so that
strangers who ask for many make no rows; only answered challenges are stored. Attestation is not asked for: any maker's
device will do. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import hashlib
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from gateway.db.organization import logins
from gateway.db.organization import passkeys as rows
from gateway.db.pool import Database
from gateway.domain.errors import InvalidRequest
from gateway.domain.tenancy.relying_party import RelyingParty
from gateway.tenancy.logins import Client, Logins, NewLogin

if TYPE_CHECKING:
    from gateway.db.pool import Connection

LIFETIME = datetime.timedelta(minutes=5)
CLOCK_SKEW_S = 60
"""Seconds by which the clock of another gateway, which made a challenge, may be ahead."""

ALGORITHMS = (-7, -8, -257)
"""The COSE numbers of the accepted signature algorithms: ES256, EdDSA, RS256 (WebAuthn, section 5.8.5)."""

REFUSED = "This passkey is not known here, or was asked for too long ago. Try again."

log = logging.getLogger(__name__)

Purpose = Literal["add", "log in"]


class SealsChallenges(Protocol):
    """An object that seals challenges for their holders, as `gateway.support.challenges.Challenges`."""

    def seal(self, content: bytes, holder: str) -> bytes:
        """Return a challenge that nobody can guess or forge, for its holder alone."""

    def open(self, challenge: bytes, holder: str) -> bytes | None:
        """Return the content of a challenge; None where it was not made for this holder."""


class NewCredential(msgspec.Struct, frozen=True):
    """The reply of a device that was asked to make a passkey."""

    id: bytes
    client_data: bytes
    attestation: bytes


class Assertion(msgspec.Struct, frozen=True):
    """The reply of a device that was asked to prove that it has a passkey."""

    id: bytes
    client_data: bytes
    authenticator_data: bytes
    signature: bytes
    user_handle: bytes | None


class VerifiedPasskey(msgspec.Struct, frozen=True):
    """A new passkey whose signature and origin were verified."""

    credential_id: bytes
    public_key: bytes
    """The public key in COSE's form."""
    sign_count: int
    """The device's counter of signatures."""


class _ClientData(msgspec.Struct, frozen=True):
    """The part of the browser's client data that has the challenge, in base64url without padding."""

    challenge: str


class Passkeys:
    """Makes challenges for passkeys and checks the answers. A gateway process has one."""

    def __init__(
        self,
        party: RelyingParty | None,
        challenges: SealsChallenges,
        database: Database,
        logins: Logins,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare passkeys.

        party: the site that passkeys are for; None if the address is one for which browsers have none.

        clock: Unix seconds, near enough to those of the other gateways.
        """
        self._clock = clock
        self._party = party
        self._challenges = challenges
        self._database = database
        self._logins = logins

    @property
    def origin(self) -> str | None:
        """The origin of the pages at which passkeys work; None: there is none."""
        return None if self._party is None else self._party.origin

    def is_usable(self, rp_id: str | None) -> bool:
        """Tell whether browsers use a passkey of a host name here. rp_id: None: it is not known."""
        return self._party is not None and rp_id in (None, self._party.id)

    @property
    def party(self) -> RelyingParty:
        """The server as browsers see it. Raises InvalidRequest: when browsers have no passkeys for it."""
        if self._party is None:
            raise InvalidRequest(
                "Passkeys need LORIKEET_PUBLIC_URL to be an https URL with a host name.", code="passkeys_unavailable"
            )
        return self._party

    def challenge(self, purpose: Purpose, holder: str) -> bytes:
        """Return a new challenge. holder: the id of the login, or the token of the browser, that it is bound to."""
        return self._challenges.seal(int(self._clock()).to_bytes(8), f"{purpose} {holder}")

    async def check_new(self, credential: NewCredential, holder: str) -> VerifiedPasskey:
        """Check a new passkey. holder: the id of the login that asked for it.

        Raises InvalidRequest: when the passkey is not valid, or its challenge is unknown or too old.
        """
        party, challenge = self.party, self._answered("add", holder, credential.client_data)
        checked = None if challenge is None else await asyncio.to_thread(_check_new, credential, challenge, party)
        if checked is None:
            raise InvalidRequest(
                "The passkey could not be checked, or took longer than five minutes. Try again.",
                param="client_data",
                code="invalid_passkey",
            )
        return checked

    async def use(self, conn: Connection, client_data: bytes) -> bool:
        """Mark the challenge in a browser's verified client data as used. Return False if it was used before."""
        kept = LIFETIME + 2 * datetime.timedelta(seconds=CLOCK_SKEW_S)  # a challenge may be good so long after its use
        return await rows.use_challenge(conn, hashlib.sha256(_challenge_of(client_data) or b"").digest(), kept)

    async def log_in(self, assertion: Assertion, holder: str, client: Client) -> NewLogin:
        """Log a user in by a passkey. holder: the token of the browser that asked for the challenge.

        Raises InvalidCredentials: when the signature is wrong; the same when nobody has the passkey.
        Raises TooManyAttempts: when too many attempts have failed.
        Raises InvalidRequest: when the server's address is one for which browsers have no passkeys.
        """
        party = self.party
        self._logins.check_blocked(client.address, client.now_s)
        with self._logins.counted(client):
            challenge = self._answered("log in", holder, assertion.client_data)
            async with self._database.acquire() as conn:
                found = await rows.find_passkey(conn, assertion.id)
                user = await logins.get_credentials(conn, found.user_id) if found else None
            if found is None or user is None or challenge is None:
                raise self._logins.refusal(None, client, REFUSED)
            sign_count = await asyncio.to_thread(_check_assertion, assertion, challenge, party, found)
            if sign_count is None:
                raise self._logins.refusal(user, client, REFUSED)
            async with self._database.acquire() as conn, conn.transaction():
                is_good = await self.use(conn, assertion.client_data) and await rows.note_use(
                    conn, found.id, sign_count, party.id
                )
            if not is_good:
                raise self._logins.refusal(user, client, REFUSED)
        return await self._logins.admit(user, client, found.id)

    def _answered(self, purpose: Purpose, holder: str, client_data: bytes) -> bytes | None:
        """Return the challenge that client data answers; None if it is too old, or of another purpose or holder."""
        challenge = _challenge_of(client_data)
        if challenge is None:
            return None
        made = self._challenges.open(challenge, f"{purpose} {holder}")
        if made is None:
            return None
        age_s = self._clock() - int.from_bytes(made)
        return challenge if -CLOCK_SKEW_S <= age_s <= LIFETIME.total_seconds() else None


def _challenge_of(client_data: bytes) -> bytes | None:
    try:
        text = msgspec.json.decode(client_data, type=_ClientData).challenge
        return base64.urlsafe_b64decode(f"{text}===")
    except (msgspec.DecodeError, ValueError):
        return None


def _check_new(credential: NewCredential, challenge: bytes, party: RelyingParty) -> VerifiedPasskey | None:
    """Check a new passkey by WebAuthn, section 7.1, and return what it proved; None if it is not good.

    The first call loads the library.
    """
    from webauthn import verify_registration_response
    from webauthn.helpers import bytes_to_base64url
    from webauthn.helpers.cose import COSEAlgorithmIdentifier
    from webauthn.helpers.structs import AuthenticatorAttestationResponse, RegistrationCredential

    answer = RegistrationCredential(
        id=bytes_to_base64url(credential.id),
        raw_id=credential.id,
        response=AuthenticatorAttestationResponse(
            client_data_json=credential.client_data, attestation_object=credential.attestation
        ),
    )
    try:
        found = verify_registration_response(
            credential=answer,
            expected_challenge=challenge,
            expected_rp_id=party.id,
            expected_origin=party.origin,
            require_user_verification=True,
            supported_pub_key_algs=[COSEAlgorithmIdentifier(number) for number in ALGORITHMS],
        )
    except Exception as error:  # the library parses what strangers wrote, and lets errors of its parsers through
        log.info("a new passkey is refused: %s", error)
        return None
    if found.credential_id != credential.id:
        log.info("a new passkey is refused: its statement is about another one")
        return None
    return VerifiedPasskey(found.credential_id, found.credential_public_key, found.sign_count)


def _check_assertion(
    assertion: Assertion, challenge: bytes, party: RelyingParty, found: rows.FoundPasskey
) -> int | None:
    """Check an answer by WebAuthn, section 7.2; return the device's count of signatures, None for a wrong answer."""
    from webauthn import verify_authentication_response
    from webauthn.helpers import bytes_to_base64url
    from webauthn.helpers.structs import AuthenticationCredential, AuthenticatorAssertionResponse

    if assertion.user_handle is not None and assertion.user_handle != found.user_id.encode():
        return None
    answer = AuthenticationCredential(
        id=bytes_to_base64url(assertion.id),
        raw_id=assertion.id,
        response=AuthenticatorAssertionResponse(
            client_data_json=assertion.client_data,
            authenticator_data=assertion.authenticator_data,
            signature=assertion.signature,
            user_handle=assertion.user_handle,
        ),
    )
    try:
        checked = verify_authentication_response(
            credential=answer,
            expected_challenge=challenge,
            expected_rp_id=party.id,
            expected_origin=party.origin,
            credential_public_key=found.public_key,
            credential_current_sign_count=found.sign_count,
            require_user_verification=True,
        )
    except Exception as error:  # as above
        log.info("a login by passkey is refused: %s", error)
        return None
    return checked.new_sign_count
