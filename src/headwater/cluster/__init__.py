"""Replicated partitions: the parts that need neither consensus nor a network. Nothing public yet.

The raft log: `_entry` is what one entry carries, `_log_store` the contract of its store with an
implementation in memory, `_segmented_log_store` the one on a Headwater log. The partitions:
`_partition_state` says how far each is, `_acks` what a quorum has and how much of the raft log is
still needed, `_master` who owns what, `_dispatcher` admits and numbers what comes in, `_apply`
hands it to the state machine, `_barrier` lets others wait for that, and `_partition_log` keeps the
partitions' own logs. Everything is sans-I/O where it can be: time, files and randomness arrive as
arguments, so that a simulator owns them.
"""
