"""Tables: a comparison as text, Markdown, CSV and JSON, its rankings, and its loads in rows."""
