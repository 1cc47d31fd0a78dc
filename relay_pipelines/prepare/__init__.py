"""What a run checks and changes at the destination before it copies.

topics          creates missing topics, adds partitions
topic_configs   compares and sets topic configurations
reader_acls     compares and creates the ACLs of the source's readers
start_records   records where new topics start
losses          accepts a loss: moves the checkpoint past it
quarantine      puts a diverged node into quarantine
permissions     which permissions are missing for all of this
"""
