"""Settings: every flag, key of a profile and keyword of a call, declared once and in one place."""
