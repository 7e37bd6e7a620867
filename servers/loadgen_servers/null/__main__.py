"""`python -m loadgen_servers.null`."""

from __future__ import annotations

import sys

from loadgen_servers.null.server import main

if __name__ == "__main__":
    sys.exit(main())
