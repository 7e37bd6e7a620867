"""Sending: which request goes out when, over which connection, in which process."""
