"""Quality: how far a checkpoint's distribution is from a reference's, of log-probabilities over HTTP."""
