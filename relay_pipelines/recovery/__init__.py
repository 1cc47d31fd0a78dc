"""What the operator decides when a mirror cannot go on by itself.

restore  makes lost checkpoints again from the ledger, or a lost ledger
reset    moves the checkpoints of a topic whose copies are elsewhere, or gone
command  the commands `relay restore` and `relay reset`
"""
