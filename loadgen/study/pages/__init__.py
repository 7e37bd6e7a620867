"""Pages: runs as HTML, pictures, Markdown, CSV and terminal plots."""
