"""README's table of settings is the code's."""

from __future__ import annotations

from pathlib import Path

from gateway.settings import settings_table

README = Path(__file__).parents[3] / "README.md"


def test_every_setting_is_in_readme_with_its_default_and_meaning() -> None:
    documented = [line for line in README.read_text().splitlines() if line.startswith(("| `LORIKEET_", "| `DATABASE_"))]
    expected = [
        f"| `{row.name}` | {'—' if row.default in ('', '-') else f'`{row.default}`'} | {row.doc} |"
        for row in settings_table()
    ]
    assert documented == expected
