"""Series: many runs from one command: campaigns, sweeps, searches for a limit, ladders.

Each is a `Chooser`: it chooses its next step, from a list, a grid or what its runs showed, and keeps what
came of it. They share the rest: `run_series` is the loop, `measure_point` makes and keeps one run,
`PointServers` keeps the server between runs, `SeriesStore` is the directory, where a step is whole or
absent, `Pace` estimates the time left, `digest_options` says which series goes on.
"""
