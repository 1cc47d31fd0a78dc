"""Whether the schema ids in copied records mean the same at the destination's registry.

ids            which schemas a record names
read_ids       reads from the destination which ones copied records name
schema         schemas as registries store them
registry       a client of Confluent's REST API
verify         compares what the ids mean at both registries
verdict        what that has found, in one wording
inventory      reads all versions of a registry
plan           what must be registered so that ids mean the same: no I/O
import_record  what an import has to restore, in the mirrors' state at the destination
apply          registers what is missing, and reads it back
metrics        what `verify` has found, for Prometheus
preflight      what `relay check` says of the registries
request        what the command and the check are asked for
checks         the check `schemas` of a topic's windows
command        the command `relay schemas`
"""
