"""Share groups (KIP-932). The notation: see the package."""

TABLE = """
api 76 ShareGroupHeartbeat 1-1 flexible 0
request
  group_id string
  member_id string
  member_epoch i32
  rack_id string? =null
  subscribed_topic_names [string]? =null
response
  @heartbeat-answer

api 77 ShareGroupDescribe 1-1 flexible 0
request
  @groups-asked
response
  @assignments
  groups [DescribedGroup]
    @group
    members [Member]
      member_id string
      rack_id string? =null
      member_epoch i32
      client_id string
      client_host string
      subscribed_topic_names [string]
      assignment Assignment
    authorized_operations i32 =-2147483648

api 78 ShareFetch 1-2 flexible 0
request
  group_id string? =null
  member_id string?
  share_session_epoch i32
  max_wait_ms i32
  min_bytes i32
  max_bytes i32 =2147483647
  max_records i32
  batch_size i32
  share_acquire_mode i8 v2+
  is_renew_ack bool v2+
  topics [FetchTopic]
    topic_id uuid
    partitions [FetchPartition]
      partition_index i32
      @acknowledgements
  forgotten_topics_data [ForgottenTopic]
    topic_id uuid
    partitions [i32]
response
  throttle_time_ms i32
  error_code i16
  error_message string? =null
  acquisition_lock_timeout_ms i32
  responses [ShareFetchableTopicResponse]
    topic_id uuid
    partitions [PartitionData]
      partition_index i32
      error_code i16
      error_message string? =null
      acknowledge_error_code i16
      acknowledge_error_message string? =null
      current_leader LeaderIdAndEpoch
        @leader
      records records
      acquired_records [AcquiredRecords]
        first_offset i64
        last_offset i64
        delivery_count i16
  node_endpoints [NodeEndpoint]
    @endpoint

api 79 ShareAcknowledge 1-2 flexible 0
request
  group_id string? =null
  member_id string?
  share_session_epoch i32
  is_renew_ack bool v2+
  topics [AcknowledgeTopic]
    topic_id uuid
    partitions [AcknowledgePartition]
      partition_index i32
      @acknowledgements
response
  throttle_time_ms i32
  error_code i16
  error_message string? =null
  acquisition_lock_timeout_ms i32 v2+
  responses [ShareAcknowledgeTopicResponse]
    topic_id uuid
    partitions [PartitionData]
      partition_index i32
      error_code i16
      error_message string? =null
      current_leader LeaderIdAndEpoch
        @leader
  node_endpoints [NodeEndpoint]
    @endpoint

api 90 DescribeShareGroupOffsets 0-1 flexible 0
request
  groups [DescribeShareGroupOffsetsRequestGroup]
    group_id string
    topics [DescribeShareGroupOffsetsRequestTopic]?
      topic_name string
      partitions [i32]
response
  throttle_time_ms i32
  groups [DescribeShareGroupOffsetsResponseGroup]
    group_id string
    topics [DescribeShareGroupOffsetsResponseTopic]
      topic_name string
      topic_id uuid
      partitions [DescribeShareGroupOffsetsResponsePartition]
        partition_index i32
        start_offset i64
        leader_epoch i32
        lag i64 v1+ =-1
        error_code i16
        error_message string? =null
    error_code i16
    error_message string? =null

api 91 AlterShareGroupOffsets 0-0 flexible 0
request
  group_id string
  topics [AlterShareGroupOffsetsRequestTopic]
    topic_name string
    partitions [AlterShareGroupOffsetsRequestPartition]
      partition_index i32
      start_offset i64
response
  throttle_time_ms i32
  error_code i16
  error_message string? =null
  responses [AlterShareGroupOffsetsResponseTopic]
    topic_name string
    topic_id uuid
    partitions [AlterShareGroupOffsetsResponsePartition]
      partition_index i32
      error_code i16
      error_message string? =null

api 92 DeleteShareGroupOffsets 0-0 flexible 0
request
  group_id string
  topics [DeleteShareGroupOffsetsRequestTopic]
    topic_name string
response
  throttle_time_ms i32
  error_code i16
  error_message string? =null
  responses [DeleteShareGroupOffsetsResponseTopic]
    topic_name string
    topic_id uuid
    error_code i16
    error_message string? =null
"""
