"""The page of settings has each of the code's settings once, with its default and meaning, and no other."""

from __future__ import annotations

from pathlib import Path

from gateway.settings import settings_table

PAGE = Path(__file__).parents[3] / "gateway" / "SETTINGS.md"


def test_every_setting_is_on_its_page_once_with_its_default_and_meaning() -> None:
    documented = [line for line in PAGE.read_text().splitlines() if line.startswith(("| `LORIKEET_", "| `DATABASE_"))]
    expected = [
        f"| `{row.name}` | {'—' if row.default in ('', '-') else f'`{row.default}`'} | {row.doc} |"
        for row in settings_table()
    ]
    assert sorted(documented) == sorted(expected)
