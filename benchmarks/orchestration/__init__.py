"""Measures the costs of Dagster around the copy: `python -m benchmarks.orchestration`.

environment  a mirror of many topics between two brokers, and a Dagster instance
busy         new data in some of many topics: the planner's tick, the run, and `relay run`
idle         `dagster dev` with nothing to do
idle_topics  very many topics of a session without news: CPU, memory, connections
many_topics  very many topics of a session that all have news; part of `make soak`
following    an asset of one's own that follows a topic, run on its own
crowded      a database with very many old windows: ticks, and queries of the asset page
latency      from produced to readable at the destination
planners     ticks of one mirror in several checkouts of this project, side by side
windows      a session's window as its topics grow, in several checkouts
databases    what windows cost SQLite and PostgreSQL, and several that delete them at once
wide         very many topics: ticks of all planners, one run, and the pages
figures      the measured values
report       docs/benchmarks-dagster.md
many_topics_report  docs/soak-topics.md
soak         `make soak`: kills, edits and outages, or very many topics; writes docs/soak.md
soak_page    docs/soak.md and its picture
"""
