"""Compares speed, CPU and memory with other ways to copy a topic: `python -m benchmarks`.

inputs, seeding    the topics to copy, and writing them to the source
clusters           creates, counts and deletes topics
contenders         the ways to copy, listed in `run.py`
workers            runs the tasks of a contender in processes of their own
run                copies each input with each contender, interleaved
values, medians    the measured values and their medians over the repetitions
profiling          the CPU profile of one task
machine, tree      describes the machine; measures a command with all its child processes
merging, floor     what a small batch costs, and what the brokers alone need: run on their own
growth             the cost as topics and executors grow: run on its own, with
looks              that of looks at a mirror: status, exporter, plan, until Spark begins
attestations       that of `relay attest`
group_offsets      that of moving and following consumer groups
schema_ids         that of comparing the schemas of copied records
comparing          that of comparing two clusters
moves              that of a move: rehearsal, fence, cut and the way back
definitions        that of Dagster's definitions
state              the cost of reading a mirror's state as another one grows: run on its own
offset_maps        what ledger entries pay to say which offsets have a copy: run on its own
targets, report    the targets, and docs/benchmarks.md
merging            when merging small batches pays, a benchmark of its own
start, first_job   what a small run pays besides the copy, a benchmark of its own
start_marks        notes the parts of a run, for it
first_record       from nothing to the first mirrored record, a benchmark of its own
orchestration      the costs of Dagster, a benchmark of its own
"""
