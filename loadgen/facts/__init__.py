"""Facts: everything that a run knows of itself beyond its records, each fact declared once."""
