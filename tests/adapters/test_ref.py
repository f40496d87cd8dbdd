"""Names that people may give to adapters."""

from __future__ import annotations

import pytest

from adapters.ref import check_adapter_name


@pytest.mark.parametrize("name", ["a", "7", "pirate", "gpt-4.1_mini", "a" * 64])
def test_plain_names_are_taken(name: str) -> None:
    check_adapter_name(name)


@pytest.mark.parametrize("name", ["", "A", "-a", ".a", "_a", "a b", "a/b", "a:b", "a\n", "ä", "a" * 65, "a" * 10_000])
def test_other_names_are_refused_with_the_rule(name: str) -> None:
    with pytest.raises(ValueError, match="use 1 to 64 characters") as refusal:
        check_adapter_name(name)
    assert len(str(refusal.value)) < 250
