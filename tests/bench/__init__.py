"""The bars: what the guard costs, how late it acts, how fast a process is gone, and what its peers do.

`make bench` measures all of it in about ten minutes, `make bench BENCH=guard` the guard alone; each prints a table and
writes bench.json. Values are medians of at least 15 repeats where the name does not say otherwise.
"""
