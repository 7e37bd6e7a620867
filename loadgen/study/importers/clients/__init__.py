"""Clients: a module for each client whose files are read: how they are recognised, and their runs."""
