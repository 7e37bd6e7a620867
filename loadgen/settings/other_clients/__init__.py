"""Other clients' flags: what each is here, a table per client, of which docs/from-*.md are made."""
