"""History: one load on one machine over months: its figures run by run, and where they changed."""
