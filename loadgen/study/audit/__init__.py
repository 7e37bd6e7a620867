"""Audit: published figures checked for what cannot be."""
