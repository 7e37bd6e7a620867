"""The answer: which checkpoint to take, with what is known of each, and what would change that."""
