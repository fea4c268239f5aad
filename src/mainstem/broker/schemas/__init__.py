"""The schema registry of a namespace: what values of a topic look like, in versions that follow each other by a rule.

faults.py        what is refused, with the codes and words of Confluent's registry
records.py       the records of the topic `_schemas`, as bytes; state.py: what they come to (pure)
registry.py      the calls: register, look up, delete, levels, modes; one writer, committed before it is answered
checker.py       asks a process of its own (worker.py) to parse and compare schemas: neither holds the loop up
values.py        values by a schema: whether they fit, what they say; enforcement.py: `schema` of a topic's policy
formats/         Avro, JSON Schema and Protobuf: parsing, canonical forms, compatibility
"""
