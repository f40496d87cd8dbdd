"""How long a test waits for what has to come, such as a process that starts or a row that is written.

It only ends a test that would hang: continuous integration runs many tests on few processors, where a start of three
seconds may take a minute. A promise about time has a limit of its own.
"""

from __future__ import annotations

PATIENCE_S = 300.0
