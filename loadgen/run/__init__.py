"""Run: one command or call from flags to exit code: launch or attach, warm up, measure, follow up, finish."""
