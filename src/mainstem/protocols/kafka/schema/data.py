"""Records in and out: Produce, Fetch, and finding offsets. The notation: see the package."""

TABLE = """
api 0 Produce 0-13 flexible 9
request
  transactional_id string? v3+ =null
  acks i16
  timeout_ms i32
  topic_data [TopicProduceData]
    name string v-12
    topic_id uuid v13+
    partition_data [PartitionProduceData]
      index i32
      records records?
response
  responses [TopicProduceResponse]
    name string v-12
    topic_id uuid v13+
    partition_responses [PartitionProduceResponse]
      index i32
      error_code i16
      base_offset i64
      log_append_time_ms i64 v2+ =-1
      log_start_offset i64 v5+ =-1
      record_errors [BatchIndexAndErrorMessage] v8+
        batch_index i32
        batch_index_error_message string? =null
      error_message string? v8+ =null
      current_leader LeaderIdAndEpoch v10+ #0
        leader_id i32 =-1
        leader_epoch i32 =-1
  throttle_time_ms i32 v1+
  node_endpoints [NodeEndpoint] v10+ #0
    @endpoint

api 1 Fetch 4-18 flexible 12
request
  cluster_id string? v12+ #0 =null
  replica_id i32 v-14 =-1
  replica_state ReplicaState v15+ #1
    replica_id i32 =-1
    replica_epoch i64 =-1
  max_wait_ms i32
  min_bytes i32
  max_bytes i32 =2147483647
  isolation_level i8
  session_id i32 v7+
  session_epoch i32 v7+ =-1
  topics [FetchTopic]
    topic string v-12
    topic_id uuid v13+
    partitions [FetchPartition]
      partition i32
      current_leader_epoch i32 v9+ =-1
      fetch_offset i64
      last_fetched_epoch i32 v12+ =-1
      log_start_offset i64 v5+ =-1
      partition_max_bytes i32
      replica_directory_id uuid v17+ #0
      high_watermark i64 v18+ #1 =9223372036854775807
  forgotten_topics_data [ForgottenTopic] v7+
    topic string v-12
    topic_id uuid v13+
    partitions [i32]
  rack_id string v11+
response
  throttle_time_ms i32
  error_code i16 v7+
  session_id i32 v7+
  responses [FetchableTopicResponse]
    topic string v-12
    topic_id uuid v13+
    partitions [PartitionData]
      partition_index i32
      error_code i16
      high_watermark i64
      last_stable_offset i64 =-1
      log_start_offset i64 v5+ =-1
      diverging_epoch EpochEndOffset v12+ #0
        epoch i32 =-1
        end_offset i64 =-1
      current_leader LeaderIdAndEpoch v12+ #1
        leader_id i32 =-1
        leader_epoch i32 =-1
      snapshot_id SnapshotId v12+ #2
        end_offset i64 =-1
        epoch i32 =-1
      aborted_transactions [AbortedTransaction]?
        producer_id i64
        first_offset i64
      preferred_read_replica i32 v11+ =-1
      records records?
  node_endpoints [NodeEndpoint] v16+ #0
    @endpoint

api 2 ListOffsets 1-11 flexible 6
request
  replica_id i32
  isolation_level i8 v2+
  topics [ListOffsetsTopic]
    name string
    partitions [ListOffsetsPartition]
      partition_index i32
      current_leader_epoch i32 v4+ =-1
      timestamp i64
  timeout_ms i32 v10+
response
  throttle_time_ms i32 v2+
  topics [ListOffsetsTopicResponse]
    name string
    partitions [ListOffsetsPartitionResponse]
      partition_index i32
      error_code i16
      timestamp i64 =-1
      offset i64 =-1
      leader_epoch i32 v4+ =-1

api 23 OffsetForLeaderEpoch 2-4 flexible 4
request
  replica_id i32 v3+ =-2
  topics [OffsetForLeaderTopic]
    topic string
    partitions [OffsetForLeaderPartition]
      partition i32
      current_leader_epoch i32 =-1
      leader_epoch i32
response
  throttle_time_ms i32
  topics [OffsetForLeaderTopicResult]
    topic string
    partitions [EpochEndOffset]
      error_code i16
      partition i32
      leader_epoch i32 =-1
      end_offset i64 =-1

api 21 DeleteRecords 0-2 flexible 2
request
  topics [DeleteRecordsTopic]
    name string
    partitions [DeleteRecordsPartition]
      partition_index i32
      offset i64
  timeout_ms i32
response
  throttle_time_ms i32
  topics [DeleteRecordsTopicResult]
    name string
    partitions [DeleteRecordsPartitionResult]
      partition_index i32
      low_watermark i64
      error_code i16
"""
