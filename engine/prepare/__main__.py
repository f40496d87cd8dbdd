"""`python -m engine.prepare SOURCE --out DIR`: prepare a base model for the engine."""

import sys

from engine.prepare.folder import main

if __name__ == "__main__":
    sys.exit(main())
