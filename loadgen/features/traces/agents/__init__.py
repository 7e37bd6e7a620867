"""Agents: recorded sessions of coding agents, whose requests wait for answers."""
