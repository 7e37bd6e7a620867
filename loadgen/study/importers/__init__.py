"""Importers: other clients' result files and pasted pages, read into run summaries."""
