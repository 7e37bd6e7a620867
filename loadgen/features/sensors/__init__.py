"""Sensors: memory, power, temperature and clocks of this machine, sampled during a run."""
