"""What to copy: pure functions from what the clusters say to windows and tasks."""
