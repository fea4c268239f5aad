"""Topics, settings and the cluster, as administrators see them. The notation: see the package."""

TABLE = """
api 19 CreateTopics 2-7 flexible 5
request
  topics [CreatableTopic]
    name string
    num_partitions i32
    replication_factor i16
    assignments [CreatableReplicaAssignment]
      partition_index i32
      broker_ids [i32]
    configs [CreatableTopicConfig]
      name string
      value string?
  timeout_ms i32 =60000
  validate_only bool
response
  throttle_time_ms i32
  topics [CreatableTopicResult]
    name string
    topic_id uuid v7+
    error_code i16
    error_message string?
    topic_config_error_code i16 v5+ #0
    num_partitions i32 v5+ =-1
    replication_factor i16 v5+ =-1
    configs [CreatableTopicConfigs]? v5+
      name string
      value string?
      read_only bool
      config_source i8 =-1
      is_sensitive bool

api 20 DeleteTopics 1-6 flexible 4
request
  topics [DeleteTopicState] v6+
    name string? =null
    topic_id uuid
  topic_names [string] v-5
  timeout_ms i32
response
  throttle_time_ms i32
  responses [DeletableTopicResult]
    name string?6+
    topic_id uuid v6+
    error_code i16
    error_message string? v5+ =null

api 37 CreatePartitions 0-3 flexible 2
request
  topics [CreatePartitionsTopic]
    name string
    count i32
    assignments [CreatePartitionsAssignment]?
      broker_ids [i32]
  timeout_ms i32
  validate_only bool
response
  throttle_time_ms i32
  results [CreatePartitionsTopicResult]
    name string
    error_code i16
    error_message string? =null

api 32 DescribeConfigs 1-4 flexible 4
request
  resources [DescribeConfigsResource]
    resource_type i8
    resource_name string
    configuration_keys [string]?
  include_synonyms bool
  include_documentation bool v3+
response
  throttle_time_ms i32
  results [DescribeConfigsResult]
    error_code i16
    error_message string?
    resource_type i8
    resource_name string
    configs [DescribeConfigsResourceResult]
      name string
      value string?
      read_only bool
      config_source i8 =-1
      is_sensitive bool
      synonyms [DescribeConfigsSynonym]
        name string
        value string?
        source i8
      config_type i8 v3+
      documentation string? v3+

api 33 AlterConfigs 0-2 flexible 2
request
  resources [AlterConfigsResource]
    resource_type i8
    resource_name string
    configs [AlterableConfig]
      name string
      value string?
  validate_only bool
response
  throttle_time_ms i32
  responses [AlterConfigsResourceResponse]
    error_code i16
    error_message string?
    resource_type i8
    resource_name string

api 44 IncrementalAlterConfigs 0-1 flexible 1
request
  resources [AlterConfigsResource]
    resource_type i8
    resource_name string
    configs [AlterableConfig]
      name string
      config_operation i8
      value string?
  validate_only bool
response
  throttle_time_ms i32
  responses [AlterConfigsResourceResponse]
    error_code i16
    error_message string?
    resource_type i8
    resource_name string

api 74 ListConfigResources 0-1 flexible 0
request
  resource_types [i8] v1+
response
  throttle_time_ms i32
  error_code i16
  config_resources [ConfigResource]
    resource_name string
    resource_type i8 v1+ =16

api 34 AlterReplicaLogDirs 1-2 flexible 2
request
  dirs [AlterReplicaLogDir]
    path string
    topics [AlterReplicaLogDirTopic]
      name string
      partitions [i32]
response
  throttle_time_ms i32
  results [AlterReplicaLogDirTopicResult]
    topic_name string
    partitions [AlterReplicaLogDirPartitionResult]
      partition_index i32
      error_code i16

api 35 DescribeLogDirs 1-5 flexible 2
request
  topics [DescribableLogDirTopic]?
    topic string
    partitions [i32]
response
  throttle_time_ms i32
  error_code i16 v3+
  results [DescribeLogDirsResult]
    error_code i16
    log_dir string
    topics [DescribeLogDirsTopic]
      name string
      partitions [DescribeLogDirsPartition]
        partition_index i32
        partition_size i64
        offset_lag i64
        is_future_key bool
    total_bytes i64 v4+ =-1
    usable_bytes i64 v4+ =-1
    is_cordoned bool v5+ =False

api 43 ElectLeaders 0-2 flexible 2
request
  election_type i8 v1+
  topic_partitions [TopicPartitions]?
    topic string
    partitions [i32]
  timeout_ms i32 =60000
response
  throttle_time_ms i32
  error_code i16 v1+
  replica_election_results [ReplicaElectionResult]
    topic string
    partition_result [PartitionResult]
      partition_id i32
      error_code i16
      error_message string?

api 45 AlterPartitionReassignments 0-1 flexible 0
request
  timeout_ms i32 =60000
  allow_replication_factor_change bool v1+ =true
  topics [ReassignableTopic]
    name string
    partitions [ReassignablePartition]
      partition_index i32
      replicas [i32]? =null
response
  throttle_time_ms i32
  allow_replication_factor_change bool v1+ =true
  error_code i16
  error_message string?
  responses [ReassignableTopicResponse]
    name string
    partitions [ReassignablePartitionResponse]
      partition_index i32
      error_code i16
      error_message string?

api 46 ListPartitionReassignments 0-0 flexible 0
request
  timeout_ms i32 =60000
  topics [ListPartitionReassignmentsTopics]? =null
    name string
    partition_indexes [i32]
response
  throttle_time_ms i32
  error_code i16
  error_message string?
  topics [OngoingTopicReassignment]
    name string
    partitions [OngoingPartitionReassignment]
      partition_index i32
      replicas [i32]
      adding_replicas [i32]
      removing_replicas [i32]

api 48 DescribeClientQuotas 0-1 flexible 1
request
  components [ComponentData]
    entity_type string
    match_type i8
    match string?
  strict bool
response
  throttle_time_ms i32
  error_code i16
  error_message string?
  entries [EntryData]?
    entity [EntityData]
      entity_type string
      entity_name string?
    values [ValueData]
      key string
      value f64

api 49 AlterClientQuotas 0-1 flexible 1
request
  entries [EntryData]
    entity [EntityData]
      entity_type string
      entity_name string?
    ops [OpData]
      key string
      value f64
      remove bool
  validate_only bool
response
  throttle_time_ms i32
  entries [EntryData]
    error_code i16
    error_message string?
    entity [EntityData]
      entity_type string
      entity_name string?

api 55 DescribeQuorum 0-2 flexible 0
request
  topics [TopicData]
    topic_name string
    partitions [PartitionData]
      partition_index i32
response
  struct ReplicaState
    replica_id i32
    replica_directory_id uuid v2+
    log_end_offset i64
    last_fetch_timestamp i64 v1+ =-1
    last_caught_up_timestamp i64 v1+ =-1
  error_code i16
  error_message string? v2+ =null
  topics [TopicData]
    topic_name string
    partitions [PartitionData]
      partition_index i32
      error_code i16
      error_message string? v2+ =null
      leader_id i32
      leader_epoch i32
      high_watermark i64
      current_voters [ReplicaState]
      observers [ReplicaState]
  nodes [Node] v2+
    node_id i32
    listeners [Listener]
      name string
      host string
      port u16
"""
