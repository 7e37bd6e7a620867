"""Features: each is a folder of what some runs do; what chooses among them, in the core, imports them.

A feature imports the core, and no other feature.
"""
