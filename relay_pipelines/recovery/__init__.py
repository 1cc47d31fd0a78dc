"""What a person decides when a mirror cannot go on by itself.

restore          makes lost checkpoints again from the ledger, or a lost ledger
restore_command  the command `relay restore`
reset            moves the checkpoints of a topic whose copies are elsewhere, or gone
reset_command    the command `relay reset`
"""
