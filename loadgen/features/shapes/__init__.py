"""Shapes: loads that change over time, mix classes of requests, or give up some of them on purpose."""
