"""Compares the destination with what the ledger says.

recount            counts the records of a window again
chain              whether ledger entries are those that were committed
verified_ledger    reads a mirror's ledger, and verifies its chains
statement          what a ledger said at some time, signed if wanted
against_statement  compares a destination with a statement
"""
