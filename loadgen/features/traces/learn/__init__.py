"""Learn: a log of a service becomes a workload without its texts, names and ids."""
