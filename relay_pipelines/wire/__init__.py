"""Kafka's wire format: bytes in, bytes out. Knows no checkpoint, no mirror, no plan."""
