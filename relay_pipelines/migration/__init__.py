"""Configurations of other mirrors as relay.yaml: `relay convert`.

kaf_relay       kaf-relay's config.toml
mirrormaker2    the properties of a dedicated MirrorMaker 2
document        what a conversion builds; properties and security settings of Kafka's clients
"""
