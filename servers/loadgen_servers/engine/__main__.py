"""`python -m loadgen_servers.engine`."""

import os
import sys

from loadgen_servers.engine.cli import main

if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # its caller waits for its end, and the kernel clears up faster
