"""The null server: prebuilt tokens on a clock, and a log of when each was really written."""
