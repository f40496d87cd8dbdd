"""Installs the browser that the tests drive, where no browser is installed: Debian's Chromium, and a font for pictures.

python -m tests.browser.install
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PACKAGES = ("chromium-headless-shell", "fonts-inter")


def find_chromium() -> str | None:
    """Return the path of an installed Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def main() -> int:
    if find_chromium() is not None:
        return 0
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        print(f"The browser tests need Chromium: install one of {', '.join(NAMES)}.", file=sys.stderr)
        return 1
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-qq", "--yes", "--no-install-recommends", *PACKAGES]):
        subprocess.run(["apt-get", *command], env=environment, check=True, stdout=subprocess.DEVNULL)
    return 0


if __name__ == "__main__":
    sys.exit(main())
