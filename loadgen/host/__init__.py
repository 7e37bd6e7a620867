"""Host: this machine while a run goes on: memory, power, heat, clocks, throttling."""
