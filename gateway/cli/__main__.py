"""`python -m gateway.cli`, the same as `lorikeet`."""

import sys

from gateway.cli.command import main

sys.exit(main())
