"""Decides what to copy: pure functions, without any I/O.

topic_selection     which topics to copy, and what their copies are called
positions           what each topic-partition has that is new, and what it lost
node_choice         which node to read
policies            whether another configuration decided what is copied
window_sizing       cuts a backlog into windows
frozen_window       the windows of many topics under one partition key
owners              which transactional id copies which range
task_packing        which ranges share a Spark task
acl_decisions       which ACLs the copies should have
"""
