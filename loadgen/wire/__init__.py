"""Wire: bytes on the wire: HTTP, server-sent events, engines' dialects."""
