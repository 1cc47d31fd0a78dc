"""Whether the schema ids in copied records mean the same at the destination's registry.

read_ids   reads from the destination which ones copied records name
schema     schemas as registries store them
registry   reads by Confluent's REST API
verify     compares what the ids mean at both registries
verdict    what that has found, in one wording
metrics    what `verify` has found, for Prometheus
preflight  what `relay check` says of the registries
request    what the command and the check are asked for
checks     the check `schemas` of a topic's windows
command    the command `relay schemas verify`
"""
