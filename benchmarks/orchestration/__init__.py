"""What Dagster costs around the copy; run with `python -m benchmarks.orchestration`.

environment      a mirror of many topics between two brokers, and a Dagster instance in a folder
busy       new data in some of many topics: the planner's tick, the run, and the command for the
same idle       `dagster dev` with nothing to do
crowded    a database that holds very many old windows: ticks, and the queries of the asset page
figures    the values
report     docs/benchmarks-dagster.md
"""
