"""`python -m gateway.cli`, the same as `lorikeet`."""

import sys

from gateway.cli import main

sys.exit(main())
