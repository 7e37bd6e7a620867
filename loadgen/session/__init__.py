"""Session: a run from flags to exit code: launch or attach, warm up, measure, follow up, finish."""
