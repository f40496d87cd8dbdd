"""Model strings and what each one asks for, and strings that no model can have."""

from __future__ import annotations

import pytest

from gateway.domain.routing.model_string import WantedAdapter, read_model

BASE = "Org/Tiny-1"


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        (f"{BASE}:pirate", WantedAdapter("pirate", BASE)),
        (f"{BASE}:pirate@3", WantedAdapter("pirate", BASE, 3)),
        (f"{BASE}:a.b-c_d@999999999", WantedAdapter("a.b-c_d", BASE, 999_999_999)),
        ("other-2:pirate", WantedAdapter("pirate", "other-2")),
        ("support-bot", WantedAdapter("support-bot", is_alias=True)),
        ("3", WantedAdapter("3", is_alias=True)),
    ],
)
def test_a_valid_model_string_names_its_adapter(model: str, wanted: WantedAdapter) -> None:
    assert read_model(model, [BASE, "other-2"]) == wanted


@pytest.mark.parametrize(
    "model",
    [
        *("", ":", f"{BASE}:", f"{BASE}:@3", "other:pirate", "org/tiny-1:pirate", f"{BASE}:Pirate", f"{BASE}:a:b"),
        *(f"{BASE}:pirate@{number}" for number in ("", "0", "03", "-1", "1e3", "٣", "1 ", "1@2", "9" * 10, "x")),
        *("support-bot@3", "Support", "a\0", "-a", "a" * 65, f"{BASE}@3", "a/b", f"{BASE}:a\n"),
    ],
)
def test_an_invalid_model_string_is_refused(model: str) -> None:
    assert read_model(model, [BASE, "other-2"]) is None
