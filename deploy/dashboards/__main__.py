"""Writes the dashboards for Grafana, one file of JSON each.

python -m deploy.dashboards
"""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.dashboards.boards import BOARDS
from deploy.dashboards.panel import rendered

FOLDER = Path(__file__).parent


def main() -> None:
    """Write each board to its file of JSON in the folder of dashboards."""
    for board in BOARDS:
        path = FOLDER / f"{board.name}.json"
        path.write_text(rendered(board) + "\n")
        sys.stdout.write(f"wrote {path}\n")


if __name__ == "__main__":
    main()
