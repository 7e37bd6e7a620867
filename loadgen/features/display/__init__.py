"""Display: what a person sees of a run while it is under way."""
