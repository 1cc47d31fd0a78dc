"""Decides what to copy: pure functions, without any I/O.

topic_selection     which topics to copy, and what their copies are called
positions           what each topic-partition has that is new
blockers            why it is not copied
hops                by which mirrors records came to a topic, and whether they would return
upstreams           what the upstreams hold, and which is read
upstream_choice     judges them, and chooses
policies            whether another configuration decided what is copied
frozen_window       how large a window is, and the windows of many topics under one partition key
owners              which transactional id copies which range
run_ends            which runs have said that they copy nothing more
task_packing        which ranges share a Spark task
acl_decisions       which ACLs the copies should have
"""
