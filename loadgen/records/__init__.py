"""Records: captures decoded into the columns of a run, and their journal on disk while it goes on."""
