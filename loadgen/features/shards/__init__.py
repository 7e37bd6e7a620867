"""Shards: one plan sent by several commands, on one machine or many, each of which sends its part."""
