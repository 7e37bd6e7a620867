"""A campaign: checkpoints × servers × profiles from one file, each cell several times."""
