"""A move of producers and consumers to the destination: rehearsed, proved, and taken back.

states           how far a move can come, and what changes that
record           where it stands: what each state allows, and the record at the destination
request          what the command, and a job, is asked for
inventory        what there is: ends, writers, groups and their positions. It only looks
gates            what must hold before a cut, and what a look has found of it
rehearsal        all gates on live data, and what the cut would do now
fence            stops producers, and verifies that no producer writes
cut              the steps of a cut, each of which may be repeated
copying          copies what a mirror has left, and audits it
way_back         brings home what was written at the destination since the cut
way_back_mirror  the mirror that does it
verify           looks at both sides afterwards
move             the steps as people take them: reads the record, does what is left, writes the next
command          the command `relay move`
jobs             the job `move` in Dagster, the gates as checks, and the schedule that rehearses
"""
