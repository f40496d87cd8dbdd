"""Figures that a test at full size has counted or measured: printed, and added to the table of a program that runs
many."""

from __future__ import annotations

import os
from pathlib import Path

FILE_VARIABLE = "LONG_FIGURES"
"""The environment variable with the path of the file to which figures are added."""


def figure(text: str) -> None:
    """Print a line of figures, and add it to the file that the environment names."""
    print(text)
    if name := os.environ.get(FILE_VARIABLE):
        with Path(name).open("a") as file:
            file.write(f"{text}\n")
