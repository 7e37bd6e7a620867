"""Stand-ins for what a test cannot wait for or cannot have: time, networks, servers."""
