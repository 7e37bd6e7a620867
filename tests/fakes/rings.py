"""Where a test may have a packet ring of the kernel's."""

from __future__ import annotations

import pytest

from loadgen.features.ring.ring_choice import explain_refusal

needs_ring = pytest.mark.skipif(bool(explain_refusal()), reason=explain_refusal() or "a ring can be had")
