"""What every part uses: errors, the clock, text and tables, bounds, files, secrets, the form of a rule."""
