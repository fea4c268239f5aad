"""What a client asks first: versions, login, where topics and coordinators are. The notation: see the package."""

TABLE = """
api 18 ApiVersions 0-4 flexible 3
request
  client_software_name string v3+
  client_software_version string v3+
response
  error_code i16
  api_keys [ApiVersion]
    api_key i16
    min_version i16
    max_version i16
  throttle_time_ms i32 v1+
  supported_features [SupportedFeatureKey] v3+ #0
    name string
    min_version i16
    max_version i16
  finalized_features_epoch i64 v3+ #1 =-1
  finalized_features [FinalizedFeatureKey] v3+ #2
    name string
    max_version_level i16
    min_version_level i16
  zk_migration_ready bool v3+ #3

api 17 SaslHandshake 0-1 flexible never
request
  mechanism string
response
  error_code i16
  mechanisms [string]

api 36 SaslAuthenticate 0-2 flexible 2
request
  auth_bytes bytes
response
  error_code i16
  error_message string?
  auth_bytes bytes
  session_lifetime_ms i64 v1+

api 3 Metadata 0-13 flexible 9
request
  topics [MetadataRequestTopic]?1+
    topic_id uuid v10+
    name string?10+
  allow_auto_topic_creation bool v4+ =true
  include_cluster_authorized_operations bool v8-10
  include_topic_authorized_operations bool v8+
response
  throttle_time_ms i32 v3+
  brokers [MetadataResponseBroker]
    node_id i32
    host string
    port i32
    rack string? v1+ =null
  cluster_id string? v2+ =null
  controller_id i32 v1+ =-1
  topics [MetadataResponseTopic]
    error_code i16
    name string?12+
    topic_id uuid v10+
    is_internal bool v1+
    partitions [MetadataResponsePartition]
      error_code i16
      partition_index i32
      leader_id i32
      leader_epoch i32 v7+ =-1
      replica_nodes [i32]
      isr_nodes [i32]
      offline_replicas [i32] v5+
    topic_authorized_operations i32 v8+ =-2147483648
  cluster_authorized_operations i32 v8-10 =-2147483648
  error_code i16 v13+

api 60 DescribeCluster 0-2 flexible 0
request
  include_cluster_authorized_operations bool
  endpoint_type i8 v1+ =1
  include_fenced_brokers bool v2+
response
  throttle_time_ms i32
  error_code i16
  error_message string? =null
  endpoint_type i8 v1+ =1
  cluster_id string
  controller_id i32 =-1
  brokers [DescribeClusterBroker]
    broker_id i32
    host string
    port i32
    rack string? =null
    is_fenced bool v2+
  cluster_authorized_operations i32 =-2147483648

api 75 DescribeTopicPartitions 0-0 flexible 0
request
  topics [TopicRequest]
    name string
  response_partition_limit i32 =2000
  cursor Cursor? =null
    topic_name string
    partition_index i32
response
  throttle_time_ms i32
  topics [DescribeTopicPartitionsResponseTopic]
    error_code i16
    name string?
    topic_id uuid
    is_internal bool
    partitions [DescribeTopicPartitionsResponsePartition]
      error_code i16
      partition_index i32
      leader_id i32
      leader_epoch i32 =-1
      replica_nodes [i32]
      isr_nodes [i32]
      eligible_leader_replicas [i32]? =null
      last_known_elr [i32]? =null
      offline_replicas [i32]
    topic_authorized_operations i32 =-2147483648
  next_cursor Cursor? =null
    topic_name string
    partition_index i32

api 10 FindCoordinator 0-6 flexible 3
request
  key string v-3
  key_type i8 v1+
  coordinator_keys [string] v4+
response
  throttle_time_ms i32 v1+
  error_code i16 v-3
  error_message string? v1-3
  node_id i32 v-3
  host string v-3
  port i32 v-3
  coordinators [Coordinator] v4+
    key string
    node_id i32
    host string
    port i32
    error_code i16
    error_message string?
"""
