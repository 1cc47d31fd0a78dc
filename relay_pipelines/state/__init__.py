"""What a mirror keeps at the destination, beside the records.

checkpoint      how far each topic-partition is copied; start offsets; quarantined nodes
ledger          one entry per committed chunk
ledger_reader   reads the ledger as it grows
ledger_columns  ledger entries as a table
fencing         takes a transactional id over, and commits a few records under it
"""
