"""`python -m loadgen_servers.engine`."""

import sys

from loadgen_servers.engine.cli import main

if __name__ == "__main__":
    sys.exit(main())
