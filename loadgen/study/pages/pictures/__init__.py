"""Pictures: a panel drawn once, as SVG in a page or in a file, and as PNG."""
