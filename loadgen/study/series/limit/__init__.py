"""The highest load within an objective: the search, its answer, and the command."""
