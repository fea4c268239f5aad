"""Consumer groups, classic and KIP-848, and their offsets. The notation: see the package."""

TABLE = """
api 8 OffsetCommit 2-10 flexible 8
request
  group_id string
  generation_id_or_member_epoch i32 =-1
  member_id string
  group_instance_id string? v7+ =null
  retention_time_ms i64 v-4 =-1
  topics [OffsetCommitRequestTopic]
    name string v-9
    topic_id uuid v10+
    partitions [OffsetCommitRequestPartition]
      partition_index i32
      committed_offset i64
      committed_leader_epoch i32 v6+ =-1
      committed_metadata string?
response
  throttle_time_ms i32 v3+
  topics [OffsetCommitResponseTopic]
    name string v-9
    topic_id uuid v10+
    partitions [OffsetCommitResponsePartition]
      partition_index i32
      error_code i16

api 9 OffsetFetch 1-10 flexible 6
request
  group_id string v-7
  topics [OffsetFetchRequestTopic]?2+ v-7
    name string
    partition_indexes [i32]
  groups [OffsetFetchRequestGroup] v8+
    group_id string
    member_id string? v9+ =null
    member_epoch i32 v9+ =-1
    topics [OffsetFetchRequestTopics]?
      name string v-9
      topic_id uuid v10+
      partition_indexes [i32]
  require_stable bool v7+
response
  throttle_time_ms i32 v3+
  topics [OffsetFetchResponseTopic] v-7
    name string
    partitions [OffsetFetchResponsePartition]
      partition_index i32
      committed_offset i64
      committed_leader_epoch i32 v5+ =-1
      metadata string?
      error_code i16
  error_code i16 v2-7
  groups [OffsetFetchResponseGroup] v8+
    group_id string
    topics [OffsetFetchResponseTopics]
      name string v-9
      topic_id uuid v10+
      partitions [OffsetFetchResponsePartitions]
        partition_index i32
        committed_offset i64
        committed_leader_epoch i32 =-1
        metadata string?
        error_code i16
    error_code i16

api 47 OffsetDelete 0-0 flexible never
request
  group_id string
  topics [OffsetDeleteRequestTopic]
    name string
    partitions [OffsetDeleteRequestPartition]
      partition_index i32
response
  error_code i16
  throttle_time_ms i32
  topics [OffsetDeleteResponseTopic]
    name string
    partitions [OffsetDeleteResponsePartition]
      partition_index i32
      error_code i16

api 11 JoinGroup 0-9 flexible 6
request
  group_id string
  session_timeout_ms i32
  rebalance_timeout_ms i32 v1+ =-1
  member_id string
  group_instance_id string? v5+ =null
  protocol_type string
  protocols [JoinGroupRequestProtocol]
    name string
    metadata bytes
  reason string? v8+ =null
response
  throttle_time_ms i32 v2+
  error_code i16
  generation_id i32 =-1
  protocol_type string? v7+ =null
  protocol_name string?7+
  leader string
  skip_assignment bool v9+
  member_id string
  members [JoinGroupResponseMember]
    member_id string
    group_instance_id string? v5+ =null
    metadata bytes

api 14 SyncGroup 0-5 flexible 4
request
  group_id string
  generation_id i32
  member_id string
  group_instance_id string? v3+ =null
  protocol_type string? v5+ =null
  protocol_name string? v5+ =null
  assignments [SyncGroupRequestAssignment]
    member_id string
    assignment bytes
response
  throttle_time_ms i32 v1+
  error_code i16
  protocol_type string? v5+ =null
  protocol_name string? v5+ =null
  assignment bytes

api 12 Heartbeat 0-4 flexible 4
request
  group_id string
  generation_id i32
  member_id string
  group_instance_id string? v3+ =null
response
  throttle_time_ms i32 v1+
  error_code i16

api 13 LeaveGroup 0-5 flexible 4
request
  group_id string
  member_id string v-2
  members [MemberIdentity] v3+
    member_id string
    group_instance_id string? =null
    reason string? v5+ =null
response
  throttle_time_ms i32 v1+
  error_code i16
  members [MemberResponse] v3+
    member_id string
    group_instance_id string?
    error_code i16

api 15 DescribeGroups 0-6 flexible 5
request
  groups [string]
  include_authorized_operations bool v3+
response
  throttle_time_ms i32 v1+
  groups [DescribedGroup]
    error_code i16
    error_message string? v6+ =null
    group_id string
    group_state string
    protocol_type string
    protocol_data string
    members [DescribedGroupMember]
      member_id string
      group_instance_id string? v4+ =null
      client_id string
      client_host string
      member_metadata bytes
      member_assignment bytes
    authorized_operations i32 v3+ =-2147483648

api 16 ListGroups 0-5 flexible 3
request
  states_filter [string] v4+
  types_filter [string] v5+
response
  throttle_time_ms i32 v1+
  error_code i16
  groups [ListedGroup]
    group_id string
    protocol_type string
    group_state string v4+
    group_type string v5+

api 42 DeleteGroups 0-2 flexible 2
request
  groups_names [string]
response
  throttle_time_ms i32
  results [DeletableGroupResult]
    group_id string
    error_code i16

api 68 ConsumerGroupHeartbeat 0-1 flexible 0
request
  group_id string
  member_id string
  member_epoch i32
  instance_id string? =null
  rack_id string? =null
  rebalance_timeout_ms i32 =-1
  subscribed_topic_names [string]? =null
  subscribed_topic_regex string? v1+ =null
  server_assignor string? =null
  topic_partitions [TopicPartitions]? =null
    topic_id uuid
    partitions [i32]
response
  @heartbeat-answer

api 69 ConsumerGroupDescribe 0-1 flexible 0
request
  @groups-asked
response
  @assignments
  groups [DescribedGroup]
    @group
    members [Member]
      member_id string
      instance_id string? =null
      rack_id string? =null
      member_epoch i32
      client_id string
      client_host string
      subscribed_topic_names [string]
      subscribed_topic_regex string? =null
      assignment Assignment
      target_assignment Assignment
      member_type i8 v1+ =-1
    authorized_operations i32 =-2147483648
"""
