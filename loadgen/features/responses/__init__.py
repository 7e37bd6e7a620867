"""Responses: OpenAI's `/v1/responses`, of events with types, whose server may keep a session's history."""
