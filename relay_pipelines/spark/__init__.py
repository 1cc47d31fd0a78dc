"""Runs the copy with PySpark: the session, and the jobs of a run."""
