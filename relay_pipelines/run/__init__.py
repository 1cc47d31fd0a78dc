"""One run of a mirror, from plan to result.

run_plan        from a snapshot to ranges and tasks
run             prepares the destination, starts the Spark jobs, follows the ledger
spark_jobs      submits ranges to Spark and collects their outcomes
result          what the run did, and its exit code
other_writers   waits while another deployment copies the mirror
session         the Spark session, which starts with its first use
signals         Ctrl-C and SIGTERM between two commits
preflight       what `relay check` reports
"""
