"""Server: it outside the load: discovery, health, `/metrics`, logs, configuration, its model's files."""
