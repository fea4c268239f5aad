"""Producer ids and transactions. The notation: see the package."""

TABLE = """
api 22 InitProducerId 0-5 flexible 2
request
  transactional_id string?
  transaction_timeout_ms i32
  producer_id i64 v3+ =-1
  producer_epoch i16 v3+ =-1
response
  throttle_time_ms i32
  error_code i16
  producer_id i64 =-1
  producer_epoch i16

api 24 AddPartitionsToTxn 0-5 flexible 3
request
  struct AddPartitionsToTxnTopic
    name string
    partitions [i32]
  transactions [AddPartitionsToTxnTransaction] v4+
    transactional_id string
    producer_id i64
    producer_epoch i16
    verify_only bool =False
    topics [AddPartitionsToTxnTopic]
  v3_and_below_transactional_id string v-3
  v3_and_below_producer_id i64 v-3
  v3_and_below_producer_epoch i16 v-3
  v3_and_below_topics [AddPartitionsToTxnTopic] v-3
response
  struct AddPartitionsToTxnTopicResult
    name string
    results_by_partition [AddPartitionsToTxnPartitionResult]
  struct AddPartitionsToTxnPartitionResult
    partition_index i32
    partition_error_code i16
  throttle_time_ms i32
  error_code i16 v4+
  results_by_transaction [AddPartitionsToTxnResult] v4+
    transactional_id string
    topic_results [AddPartitionsToTxnTopicResult]
  results_by_topic_v3_and_below [AddPartitionsToTxnTopicResult] v-3

api 25 AddOffsetsToTxn 0-4 flexible 3
request
  transactional_id string
  producer_id i64
  producer_epoch i16
  group_id string
response
  throttle_time_ms i32
  error_code i16

api 28 TxnOffsetCommit 0-5 flexible 3
request
  transactional_id string
  group_id string
  producer_id i64
  producer_epoch i16
  generation_id i32 v3+ =-1
  member_id string v3+
  group_instance_id string? v3+ =null
  topics [TxnOffsetCommitRequestTopic]
    name string
    partitions [TxnOffsetCommitRequestPartition]
      partition_index i32
      committed_offset i64
      committed_leader_epoch i32 v2+ =-1
      committed_metadata string?
response
  throttle_time_ms i32
  topics [TxnOffsetCommitResponseTopic]
    name string
    partitions [TxnOffsetCommitResponsePartition]
      partition_index i32
      error_code i16

api 26 EndTxn 0-5 flexible 3
request
  transactional_id string
  producer_id i64
  producer_epoch i16
  committed bool
response
  throttle_time_ms i32
  error_code i16
  producer_id i64 v5+ =-1
  producer_epoch i16 v5+ =-1

api 61 DescribeProducers 0-0 flexible 0
request
  topics [TopicRequest]
    name string
    partition_indexes [i32]
response
  throttle_time_ms i32
  topics [TopicResponse]
    name string
    partitions [PartitionResponse]
      partition_index i32
      error_code i16
      error_message string? =null
      active_producers [ProducerState]
        producer_id i64
        producer_epoch i32
        last_sequence i32 =-1
        last_timestamp i64 =-1
        coordinator_epoch i32
        current_txn_start_offset i64 =-1

api 65 DescribeTransactions 0-0 flexible 0
request
  transactional_ids [string]
response
  throttle_time_ms i32
  transaction_states [TransactionState]
    error_code i16
    transactional_id string
    transaction_state string
    transaction_timeout_ms i32
    transaction_start_time_ms i64
    producer_id i64
    producer_epoch i16
    topics [TopicData]
      topic string
      partitions [i32]

api 66 ListTransactions 0-2 flexible 0
request
  state_filters [string]
  producer_id_filters [i64]
  duration_filter i64 v1+ =-1
  transactional_id_pattern string? v2+ =null
response
  throttle_time_ms i32
  error_code i16
  unknown_state_filters [string]
  transaction_states [TransactionState]
    transactional_id string
    producer_id i64
    transaction_state string
"""
