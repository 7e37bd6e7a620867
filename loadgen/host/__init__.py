"""Host: sensors of this machine during a run: CPU, memory, GPU power, heat, clocks, throttling."""
