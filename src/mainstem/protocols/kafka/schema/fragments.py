"""Stretches of fields that several messages share. A line `@name` in a table stands for them, at its own indentation."""

TABLE = """
@endpoint
node_id i32
host string
port i32
rack string? =null

@leader
leader_id i32
leader_epoch i32

@acknowledgements
acknowledgement_batches [AcknowledgementBatch]
  first_offset i64
  last_offset i64
  acknowledge_types [i8]

@heartbeat-answer
struct TopicPartitions
  topic_id uuid
  partitions [i32]
throttle_time_ms i32
error_code i16
error_message string? =null
member_id string? =null
member_epoch i32
heartbeat_interval_ms i32
assignment Assignment? =null
  topic_partitions [TopicPartitions]

@groups-asked
group_ids [string]
include_authorized_operations bool

@assignments
struct TopicPartitions
  topic_id uuid
  topic_name string
  partitions [i32]
struct Assignment
  topic_partitions [TopicPartitions]
throttle_time_ms i32

@group
error_code i16
error_message string? =null
group_id string
group_state string
group_epoch i32
assignment_epoch i32
assignor_name string
"""
