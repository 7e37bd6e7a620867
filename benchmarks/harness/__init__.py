"""What every benchmark shares: processes and their cost, the null server's log, the page."""
