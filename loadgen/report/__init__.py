"""Report: a run on disk and on paper: the journal, the run directory, the report, the published layouts."""
