"""Copy Kafka topics from one cluster to another in batch: exactly once, verbatim, proved."""
