"""`python -m loadgen_servers.null`."""

import sys

from loadgen_servers.null.server import main

if __name__ == "__main__":
    sys.exit(main())
