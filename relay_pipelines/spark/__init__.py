"""Where PySpark runs the copy: the session, and the one job that a run consists of."""
