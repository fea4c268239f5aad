// KafkaJS against a broker: node scenario.js <bootstrap> <topic>
const { Kafka, CompressionTypes, logLevel } = require("kafkajs");
const [bootstrap, topic] = process.argv.slice(2);
const kafka = new Kafka({ clientId: "js", brokers: [bootstrap], logLevel: logLevel.ERROR });

function check(actual, expected) {
  if (JSON.stringify(actual) !== JSON.stringify(expected)) throw new Error(`${JSON.stringify(actual)} is not ${JSON.stringify(expected)}`);
}

async function take(groupId, count) {
  const consumer = kafka.consumer({ groupId });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const found = [];
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`only ${found.length} of ${count}`)), 30000).unref();
    consumer.run({
      eachMessage: async ({ message }) => {
        found.push([message.key && message.key.toString(), message.value && message.value.toString(), message.headers.h && message.headers.h.toString()]);
        if (found.length === count) resolve();
      },
    });
  });
  await consumer.disconnect();
  return found;
}

async function main() {
  const admin = kafka.admin();
  await admin.connect();
  check(await admin.createTopics({ topics: [{ topic, numPartitions: 1 }] }), true);
  const producer = kafka.producer({ idempotent: true });
  await producer.connect();
  await producer.send({ topic, messages: [{ key: "k", value: "one", headers: { h: "x" } }] });
  await producer.send({ topic, compression: CompressionTypes.GZIP, messages: [{ key: null, value: "two" }, { key: "k", value: null }] });
  await producer.disconnect();
  const transactional = kafka.producer({ transactionalId: `${topic}-id`, maxInFlightRequests: 1, idempotent: true });
  await transactional.connect();
  for (const [value, commit] of [["dropped", false], ["three", true]]) {
    const transaction = await transactional.transaction();
    await transaction.send({ topic, messages: [{ key: "t", value }] });
    await (commit ? transaction.commit() : transaction.abort());
  }
  await transactional.disconnect();
  const expected = [["k", "one", "x"], [null, "two", null], ["k", null, null], ["t", "three", null]];
  check(await take(`${topic}-g`, 4), expected);
  check((await admin.fetchTopicOffsets(topic))[0].low, "0");
  check((await admin.describeGroups([`${topic}-g`])).groups[0].state, "Empty");
  await admin.deleteTopics({ topics: [topic] });
  await admin.disconnect();
  console.log("OK");
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
