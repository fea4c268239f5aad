// KafkaJS's registry client: registers, encodes, decodes with a client of its own, and is told what is incompatible.
const { SchemaRegistry, SchemaType } = require("@kafkajs/confluent-schema-registry");

const [host, subject] = process.argv.slice(2);

function expect(ok, what) {
  if (!ok) throw new Error(what);
}

async function main() {
  const registry = new SchemaRegistry({ host });
  const schema = { type: "record", name: "Reading", namespace: "plant", fields: [{ name: "celsius", type: "double" }] };
  const { id } = await registry.register({ type: SchemaType.AVRO, schema: JSON.stringify(schema) }, { subject });
  const value = await registry.encode(id, { celsius: 21.5 });
  const found = await new SchemaRegistry({ host }).decode(value);
  expect(found.celsius === 21.5, "decoded");
  expect((await registry.getLatestSchemaId(subject)) === id, "latest id");
  const more = { ...schema, fields: [...schema.fields, { name: "room", type: "string" }] };
  let refused = null;
  try {
    await registry.register({ type: SchemaType.AVRO, schema: JSON.stringify(more) }, { subject });
  } catch (error) {
    refused = error;
  }
  expect(refused !== null && /incompatible/.test(refused.message), `refused: ${refused && refused.message}`);
  const shape = { type: "object", properties: { celsius: { type: "number" } } };
  const json = await registry.register({ type: SchemaType.JSON, schema: JSON.stringify(shape) }, { subject: `${subject}-json` });
  expect((await registry.decode(await registry.encode(json.id, { celsius: 1 }))).celsius === 1, "JSON Schema");
  const proto = 'syntax = "proto3"; package plant; message Reading { double celsius = 1; }';
  const made = await registry.register({ type: SchemaType.PROTOBUF, schema: proto }, { subject: `${subject}-proto` });
  expect((await registry.decode(await registry.encode(made.id, { celsius: 2 }))).celsius === 2, "Protobuf");
  console.log(`value ${value.toString("hex")}`);
  console.log("OK");
}

main().catch((error) => {
  console.log(error.stack);
  process.exit(1);
});
