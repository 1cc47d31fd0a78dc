"""A move of producers and consumers to the destination: planned, rehearsed, proved, taken back.

record       where it stands: states, who may do what in which, and the record at the destination
request      what the command, and a job, is asked for
"""
