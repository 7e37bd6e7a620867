"""Wire: bytes on the wire: HTTP, server-sent events, OpenAI's two APIs."""
