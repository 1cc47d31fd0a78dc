"""Expectations of a topic's records, which Great Expectations validates on Spark.

Great Expectations and Spark are imported when a suite runs, and only then. All of this is driver
code, behind the commit of what it reads.

validation     runs a topic's expectations, and returns a result for each
suite          from settings to expectations of Great Expectations, and the DataFrame they see
data_docs      Data Docs: the same as a folder of HTML pages
topic_window   what to look at: offsets of one topic on both sides, from the ledger or a recount
request        what is asked for
selected       what to validate without Dagster: a window, or the last hours
command        the command `relay expectations`
checks         the checks of a mirrored topic
"""
