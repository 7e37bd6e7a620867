"""Plan: which requests are sent and when: profiles, prompts and arrivals, made into a plan."""
