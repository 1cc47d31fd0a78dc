"""Configurations of other mirrors as relay.yaml: `relay convert`.

document        what a conversion builds: a tree of keys, and notes on what it leaves out
kaf_relay       kaf-relay's config.toml
mirrormaker2    the properties of a dedicated MirrorMaker 2
kafka_client    the security settings of Kafka's Java clients
properties      Java's properties files
"""
