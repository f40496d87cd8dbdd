"""Names that people may give to adapters, and the keys of their content."""

from __future__ import annotations

import pytest

from adapters.ref import AdapterRef, check_adapter_name, content_key, digest_of

DIGEST = "0123456789abcdef" * 4


@pytest.mark.parametrize("name", ["a", "7", "pirate", "gpt-4.1_mini", "a" * 64])
def test_plain_names_are_taken(name: str) -> None:
    check_adapter_name(name)


@pytest.mark.parametrize("name", ["", "A", "-a", ".a", "_a", "a b", "a/b", "a:b", "a\n", "ä", "a" * 65, "a" * 10_000])
def test_other_names_are_refused_with_the_rule(name: str) -> None:
    with pytest.raises(ValueError, match="use 1 to 64 characters") as refusal:
        check_adapter_name(name)
    assert len(str(refusal.value)) < 250


def test_the_same_content_of_two_tenants_has_two_keys_and_one_digest() -> None:
    keys = [content_key(tenant, DIGEST) for tenant in ("proj_a", "proj_b")]
    assert len(set(keys)) == 2
    assert [digest_of(key) for key in keys] == [DIGEST, DIGEST]


def test_a_tenants_content_has_one_key_under_all_its_names() -> None:
    first, second = AdapterRef("proj_a", "one", 1, DIGEST), AdapterRef("proj_a", "two", 7, DIGEST)
    assert first.key == second.key


def test_a_key_never_changes() -> None:
    """Gateways and engines of different versions compute the key from the same tables."""
    assert content_key("proj_a", DIGEST) == f"{DIGEST}.8021fa4a3fc24588"


def test_a_digest_is_a_key() -> None:
    assert digest_of(DIGEST) == DIGEST


@pytest.mark.parametrize(
    "key",
    ["", DIGEST[1:], DIGEST + "\n", DIGEST.upper(), f"{DIGEST}.", f"{DIGEST}.ab", f"{DIGEST}/../../etc/passwd"],
)
def test_what_is_not_a_key_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="is not the key of an adapter's content"):
        digest_of(key)
