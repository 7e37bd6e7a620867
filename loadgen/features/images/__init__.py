"""Images: pictures that requests carry, made here or read from files, and what the server counts of them."""
