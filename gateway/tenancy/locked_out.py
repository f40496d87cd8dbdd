"""The words for people whom a changed host name locks out: passkeys belong to the name that they were made under."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.db.organization.passkeys import LockedOutUser

MAX_NAMED = 5
"""The most people whom a notice names."""


def locked_out_notice(people: Sequence[LockedOutUser], rp_id: str) -> str:
    """Return a sentence for the operator about people who are locked out, at least one, with the cure.

    rp_id: the host name of this server; "" where browsers have no passkeys for it.
    """
    named = ", ".join(each.email for each in people[:MAX_NAMED])
    if len(people) > MAX_NAMED:
        named += f" and {len(people) - MAX_NAMED} more"
    hosts = ", ".join(sorted({each.rp_id for each in people if each.rp_id}))
    theirs = f"belong to {hosts}" if hosts else "belong to another address"
    ours = f"this server is {rp_id}" if rp_id else "browsers have none for this server's address"
    return (
        f"Locked out: {named}. LORIKEET_REQUIRE_TOTP asks for a second factor, and all that they have are passkeys, "
        f"which {theirs}; {ours} now. Set LORIKEET_PUBLIC_URL as it was, or let them set up anew: "
        "lorikeet user reset --email ADDRESS --password-stdin"
    )
