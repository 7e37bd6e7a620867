"""What pip-audit found: `audited.py audit.json`; 1 where a package has a known fault.

Where the service that knows the faults could not be reached nothing was audited, and that is said.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

path = Path(sys.argv[1])
found = json.loads(path.read_text("utf-8"))["dependencies"] if path.is_file() else []
audited = [one for one in found if "skip_reason" not in one]
faults = [(one, fault) for one in audited for fault in one["vulns"]]
for one, fault in faults:
    fixed = ", ".join(fault["fix_versions"]) or "no version"
    print(f"{one['name']} {one['version']}: {fault['id']}, fixed in {fixed}")
if len(audited) < len(found) or not found:
    print(f"pip-audit: {len(audited)} of {len(found)} packages audited: for the others no list was reached")
else:
    print(f"pip-audit: {len(audited)} packages, {len(faults)} known faults")
sys.exit(bool(faults))
