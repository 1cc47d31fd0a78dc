"""What we say to a Kafka broker: bytes, connections, requests; nothing about mirrors or plans.

connection, security            one connection; SASL and TLS
idle_connections                connections of clients that have ended, for the next ones
kerberos                        SASL GSSAPI with a keytab or a ticket cache
tokens                          the tokens of SASL OAUTHBEARER: kept, requested, or the user's
client                          one cluster: its brokers, leaders, coordinators; clients of a mirror
open_transactions               which transactions are open, and since when
active_producers                who writes to topic-partitions
admin                           topics and their configurations, ACLs
groups, group_requests          consumer groups: what they have committed, and committing for them
metadata, offset_requests       topics, leaders and offsets: what each look at a cluster asks
config_requests                 the configurations of topics
fetch, reader                   the offsets of one topic-partition as spans of record batches
producer                        batches under one transactional id
batch, records                  record batches and the records inside
undecoded                       where records are, without making objects of them
requests                        what every copy needs of a broker, and what for
closed_requests                 at which requests a broker closes connections
error_codes                     from a broker's error code to our error tree
retries, clock                  attempts, waits and time
lazy_packages                   imports kafka-python and aiokafka without their clients
"""

from __future__ import annotations

from relay_pipelines.protocol.lazy_packages import defer

for _package in ("kafka", "kafka.net", "aiokafka"):
    defer(_package)
