"""Asset checks.

lag             the oldest record not yet copied is younger than the target
lag_target      no record of a topic waits for longer than the target
upstreams       an upstream can be read, keeps up, and holds what was copied
topic_configs   topic configurations match the source
other_deployments  only this Dagster instance copies the topics
source_topics   every copied topic still exists at the source

Those of a feature are in its folder: `audit/checks.py`, `expectations/checks.py`,
`windows/window_events.py`.
"""
