"""Bundle: runs with all that proves them as one file, whose every byte is checked before any is used."""
