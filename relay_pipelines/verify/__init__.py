"""Compares the destination with what the ledger says.

recount     counts the records of a window again
"""
