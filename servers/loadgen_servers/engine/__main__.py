"""`python -m loadgen_servers.engine`."""

from __future__ import annotations

import sys

from loadgen_servers.engine.cli import main

if __name__ == "__main__":
    sys.exit(main())
