"""Analysis: what is made of finished runs: comparisons, audits, reports, other clients' results."""
