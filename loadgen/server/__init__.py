"""Server: all of it but the load: discovery, health, `/metrics`, logs, configuration, model files."""
