"""Answers: a few greedy prompts after a run, whose answers show whether a checkpoint still works."""
