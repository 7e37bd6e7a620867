"""Study: what is made of many runs: comparisons, audits, pages, series, other clients' results."""
