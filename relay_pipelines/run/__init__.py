"""One run of a mirror, from plan to result.

run_plan        from a snapshot to ranges and tasks
run             prepares the destination, starts the Spark jobs, follows the ledger
spark_jobs      submits ranges to Spark and collects their outcomes
result          what the run did, and its exit code
other_writers   waits while another deployment copies the mirror
session         the Spark session, which starts with its first use
signals         Ctrl-C and SIGTERM between two commits
preflight       what `relay check` reports
restore         makes lost checkpoints again from the ledger, or a lost ledger
restore_plan    what that does with one topic-partition
replay          plans a replay, and shows those there are
replay_request  what a replay is asked for, and the mirror that it becomes
replay_ranges   which offsets a replay reads
"""
