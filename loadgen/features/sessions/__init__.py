"""Sessions: requests that are turns of a conversation, each sent after the answer to the one before."""
