"""Headwater measured against other stores: one run, the same data, one table of ratios.

`python -m headwater_bench` runs everything; `docs/benchmarks.md` says what is fair in it and what
is not. A package of its own, so that the log never depends on what it is compared with.
"""
