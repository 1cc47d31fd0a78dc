"""Asset checks: what is proved of a window, and how far a lane is behind.

message_counts  every source offset accounted for, every record there, no other: the destination
counted anew lag             the oldest record that is not copied yet is younger than the target
divergence      a node of the source holds the records that were copied configs         the topics
are configured as at the source source_topics   every topic that was copied is still at the source
"""
