"""The configuration of MirrorMaker 2 as relay.yaml: `relay convert`.

mirrormaker2    the properties of a dedicated MirrorMaker 2
document        what a conversion builds; properties and security settings of Kafka's clients
"""
