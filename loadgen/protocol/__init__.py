"""Protocol: bytes on the wire (HTTP, server-sent events, engines' dialects) and outside text made safe."""
