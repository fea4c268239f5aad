"""Access rules and users. The notation: see the package."""

TABLE = """
api 29 DescribeAcls 1-3 flexible 2
request
  resource_type_filter i8
  resource_name_filter string?
  pattern_type_filter i8 =3
  principal_filter string?
  host_filter string?
  operation i8
  permission_type i8
response
  throttle_time_ms i32
  error_code i16
  error_message string?
  resources [DescribeAclsResource]
    resource_type i8
    resource_name string
    pattern_type i8 =3
    acls [AclDescription]
      principal string
      host string
      operation i8
      permission_type i8

api 30 CreateAcls 1-3 flexible 2
request
  creations [AclCreation]
    resource_type i8
    resource_name string
    resource_pattern_type i8 =3
    principal string
    host string
    operation i8
    permission_type i8
response
  throttle_time_ms i32
  results [AclCreationResult]
    error_code i16
    error_message string?

api 31 DeleteAcls 1-3 flexible 2
request
  filters [DeleteAclsFilter]
    resource_type_filter i8
    resource_name_filter string?
    pattern_type_filter i8 =3
    principal_filter string?
    host_filter string?
    operation i8
    permission_type i8
response
  throttle_time_ms i32
  filter_results [DeleteAclsFilterResult]
    error_code i16
    error_message string?
    matching_acls [DeleteAclsMatchingAcl]
      error_code i16
      error_message string?
      resource_type i8
      resource_name string
      pattern_type i8 =3
      principal string
      host string
      operation i8
      permission_type i8

api 50 DescribeUserScramCredentials 0-0 flexible 0
request
  users [UserName]?
    name string
response
  throttle_time_ms i32
  error_code i16
  error_message string?
  results [DescribeUserScramCredentialsResult]
    user string
    error_code i16
    error_message string?
    credential_infos [CredentialInfo]
      mechanism i8
      iterations i32

api 51 AlterUserScramCredentials 0-0 flexible 0
request
  deletions [ScramCredentialDeletion]
    name string
    mechanism i8
  upsertions [ScramCredentialUpsertion]
    name string
    mechanism i8
    iterations i32
    salt bytes
    salted_password bytes
response
  throttle_time_ms i32
  results [AlterUserScramCredentialsResult]
    user string
    error_code i16
    error_message string?
"""
