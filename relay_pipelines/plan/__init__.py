"""What to copy: pure functions, without any I/O.

topic_selection     which topics, and what their copies are called
positions           how far each topic-partition is copied, what is new, what was lost
node_choice         which node to read
window_sizing       the next window of a backlog
frozen_window       the windows of many topics under one partition key
task_packing        which ranges share a Spark task
acl_decisions       which ACLs the copies need
"""
