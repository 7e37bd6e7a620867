"""Self-test: this client against a null server that logs when it really wrote each message."""
