"""Jobs that people start from the UI or on a schedule.

mirror_once       copies everything that is new, in one run
replan            cuts windows now and removes window keys without a plan
backfill_by_date  freezes the windows of a time span and starts a backfill of them
dagster_backfill  the one use of Dagster's private modules
"""
