"""A full disk costs lines of the log, and never the work of a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LOGGING = """
import logging
import structlog
from gateway.observability.metrics import configure_logging

configure_logging("INFO")
log = structlog.get_logger()
for number in range(2000):
    log.error("journal_unwritable", number=number)
logging.getLogger("x").error("unwritable")
"""


def test_a_process_that_logs_to_a_full_disk_goes_on() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([sys.executable, "-c", LOGGING], stderr=full, check=False)
    assert done.returncode in (0, 120), "120: Python itself could not write what was left, as it ended"
