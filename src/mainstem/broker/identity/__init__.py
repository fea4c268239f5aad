"""Who somebody is, for every protocol and HTTP alike: what a client shows becomes a principal, or a refusal.

passwords      hashes at rest, and those that other brokers made
foreign_users  password files of mosquitto, definitions of RabbitMQ
tokens         JSON Web Tokens: what must be right about one, and what its claims say
issuer_keys    the keys that tokens are signed with, from a file or an address, as they change
nkeys          NATS's keys: a nonce that the server made up, signed
certificates   rules that tell a user by the certificate of a TLS connection
login          all of these behind one call
throttle       guessing is slow
"""
