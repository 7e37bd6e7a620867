"""The speed of one request in the tables of the Qwen pages: published rows, measured ones, their shapes."""
