"""Pasted: text that people copy or type: pages, tables and sheets, read into run summaries."""
