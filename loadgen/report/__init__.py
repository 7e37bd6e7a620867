"""Report: a run on disk and on paper: run directory, result file, report, layouts, tables, exports."""
