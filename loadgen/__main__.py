"""`python -m loadgen`."""

import os
import sys

# -m puts the current directory first: nothing more is imported from there, unless this package lies in it.
if not sys.flags.safe_path and os.path.realpath(sys.path[0]) != os.path.realpath(f"{__file__}/../.."):
    del sys.path[0]

from loadgen.cli import run

run()
