"""One run of a mirror, from plan to result.

run_plan           from a snapshot to ranges and tasks
other_writers      waits while another deployment copies; says at the end that a run copies no more
run                prepares the destination, starts the Spark jobs, follows the ledger
spark_jobs         submits ranges to Spark and collects their outcomes
result             what the run did, and its exit code
session            the Spark session, which starts with its first use; Ctrl-C and SIGTERM
preflight          what `relay check` reports of a mirror
transaction_probe  what it tries of a destination's transactions with --probe
"""
