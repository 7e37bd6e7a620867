"""What each flag, key and keyword makes of many values, and which do not go together, is as it is stored.

Where a change means to change some, `python tests/builders/settings_outcomes.py` stores them again.
"""

from __future__ import annotations

import pytest

from builders.settings_outcomes import WAYS, collect_outcomes, read_stored


@pytest.mark.parametrize("way", WAYS)
def test_settings_make_of_each_value_what_is_stored(way: str) -> None:
    found, stored = collect_outcomes(way), read_stored(way)
    assert list(found.items() - stored.items()) == []
    assert found.keys() == stored.keys()
