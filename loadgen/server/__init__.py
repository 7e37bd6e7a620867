"""Server: the server outside the load: discovery, health, control, `/metrics`, logs, configuration."""
