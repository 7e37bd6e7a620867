"""Series: many runs from one command: campaigns, sweeps, searches for a limit, ladders.

Each chooses its next step, from a list, a grid or what its runs showed. They share the rest: `measure_point`
makes and keeps one run, `PointServers` keeps the server between runs, `SeriesStore` is the directory,
where a step is whole or absent, `TimeLeft` is an estimate, `digest_options` says which series goes on.
"""
