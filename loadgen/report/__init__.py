"""Report: a run on disk and on paper: the run directory, the report, the published layouts."""
