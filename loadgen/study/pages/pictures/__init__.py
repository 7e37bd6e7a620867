"""Pictures: a panel drawn once, as SVG in a page or in a file, as PNG, and with characters in a terminal."""
