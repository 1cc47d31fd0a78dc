"""Speed, CPU and memory of this mirror beside other ways to copy the same topics; run with `python -m benchmarks`.

inputs, seeding    what is copied, and how it gets into the source
clusters           topics, their counts, their end
contenders         who copies: one module each, named in `run.py`
run                inputs x repetitions x contenders, interleaved
targets, report    what was to be reached, and docs/benchmarks.md
"""
