"""Keys are random, carry their kind, and a typing error is found without a query."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.tenancy.keys import KeyKind, new_key, parse_key


@pytest.mark.parametrize("kind", ["project", "admin"])
def test_a_new_key_parses_to_what_is_stored(kind: KeyKind) -> None:
    made = new_key(kind)
    parsed = parse_key(made.secret)
    assert parsed is not None
    assert (parsed.kind, parsed.public, parsed.sha256) == (kind, made.public, made.sha256)
    assert made.sha256 == hashlib.sha256(made.secret.encode()).digest()
    assert made.secret.startswith(made.public)


def test_keys_do_not_repeat_and_do_not_show_in_logs() -> None:
    made = [new_key() for _ in range(100)]
    assert len({key.public for key in made}) == 100
    assert made[0].secret not in repr(made[0])


@given(position=st.integers(min_value=0), replacement=st.characters())
def test_any_single_changed_character_is_refused(position: int, replacement: str) -> None:
    secret = new_key().secret
    position %= len(secret)
    changed = secret[:position] + replacement + secret[position + 1 :]
    assert (parse_key(changed) is None) == (changed != secret)


def test_other_shapes_are_refused() -> None:
    secret = new_key().secret
    for text in ("", "sk-lk-", "sk-abc", "' OR 1=1 --", secret + "x", " " + secret, secret + "\n", "é" * 64):
        assert parse_key(text) is None, text


def test_a_project_key_cannot_be_rewritten_as_an_operators() -> None:
    assert parse_key(new_key("project").secret.replace("sk-lk-", "sk-lk-admin-")) is None
