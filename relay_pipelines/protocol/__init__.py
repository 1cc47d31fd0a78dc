"""What we say to a Kafka broker: bytes, connections, requests; nothing about mirrors or plans.

connection, sasl, tls           one connection, and how it authenticates
tokens, oauth, user_tokens      the tokens of SASL OAUTHBEARER: kept, requested, or the user's
client                          one cluster: its brokers, leaders, coordinators
clients                         clients of a mirror's source and destination
open_transactions               which transactions are open, and since when
admin, acls, groups             topics and their configurations, ACLs, consumer groups
fetch, reader                   the offsets of one topic-partition as spans of record batches
produce, producer               batches under one transactional id
batch, records, python_codec    record batches and the records inside
batch_timestamps                when records were written
error_codes                     from a broker's error code to our error tree
retries, clock                  attempts, waits and time
"""
