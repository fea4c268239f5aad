// node scenario.cjs nats://HOST:PORT ws://HOST:PORT/nats PREFIX: nats.js over TCP and over WebSocket; OK if all went well.
const assert = require("node:assert");
const { connect, wsconnect, headers, Empty } = require("@nats-io/transport-node");
const { jetstream, jetstreamManager, AckPolicy } = require("@nats-io/jetstream");
const { startFastIngest } = require("@nats-io/jetstream/internal");
const { Objm } = require("@nats-io/obj");
globalThis.WebSocket ??= require("ws");

async function take(subscription, count) {
  const found = [];
  for await (const message of subscription) {
    found.push(message);
    if (found.length === count) break;
  }
  return found;
}

async function core(nc, root) {
  const everything = take(nc.subscribe(`${root}.>`), 300);
  const workers = [1, 2].map(() => nc.subscribe(`${root}.*`, { queue: "workers" }));
  let worked = 0;
  workers.forEach(async (one) => { for await (const _ of one) worked++; });
  await nc.flush();
  for (let n = 0; n < 300; n++) {
    const h = headers();
    h.append("N", String(n));
    h.append("N", "again");
    nc.publish(`${root}.${n % 3}`, `value ${n}`, n % 2 ? { headers: h } : {});
  }
  const got = await everything;
  got.forEach((message, n) => {
    assert.equal(message.string(), `value ${n}`);
    assert.deepEqual(message.headers ? message.headers.values("N") : [], n % 2 ? [String(n), "again"] : []);
  });
  await nc.flush();
  assert.equal(worked, 300);
  const service = nc.subscribe(`${root}.ask.me`);
  (async () => { for await (const message of service) message.respond(`re: ${message.string()}`); })();
  await nc.flush();
  for (let n = 0; n < 20; n++) assert.equal((await nc.request(`${root}.ask.me`, `${n}`)).string(), `re: ${n}`);
  await assert.rejects(nc.request(`${root}.ask.nobody`, Empty, { timeout: 5000 }), /no responders/i);
  const large = new Uint8Array(500_000).fill(7);
  const one = take(nc.subscribe(`${root}.large`, { max: 1 }), 1);
  nc.publish(`${root}.large`, large);
  assert.deepEqual((await one)[0].data, large);
}

async function stored(nc, root) {
  const name = root.replaceAll(".", "_");
  const manager = await jetstreamManager(nc);
  await manager.streams.add({ name, subjects: [`${root}.js.>`] });
  const js = jetstream(nc);
  for (let n = 1; n <= 20; n++) assert.equal((await js.publish(`${root}.js.a`, `${n}`)).seq, n);
  await manager.consumers.add(name, { durable_name: "c", ack_policy: AckPolicy.Explicit });
  const consumer = await js.consumers.get(name, "c");
  const found = [];
  for await (const message of await consumer.fetch({ max_messages: 20, expires: 5000 })) {
    found.push(message.string());
    message.ack();
  }
  assert.deepEqual(found, Array.from({ length: 20 }, (_, n) => String(n + 1)));
  await manager.streams.delete(name);
}

async function ingested(nc, root) {
  const name = root.replaceAll(".", "_");
  const manager = await jetstreamManager(nc);
  await manager.streams.add({ name, subjects: [`${root}.in`], allow_batched: true });
  const batch = await startFastIngest(nc, `${root}.in`, "1", { allowGaps: false, ackInterval: 50 });
  for (let n = 2; n < 1000; n++) await batch.add(`${root}.in`, String(n));
  await batch.ping();
  const ack = await batch.last(`${root}.in`, "1000");
  assert.deepEqual([ack.stream, ack.seq, ack.batch, ack.count], [name, 1000, batch.batch, 1000]);
  assert.equal((await manager.streams.info(name)).state.messages, 1000);
  assert.equal((await manager.streams.getMessage(name, { seq: 777 })).string(), "777");
  await manager.streams.delete(name);
}

async function objects(nc, root) {
  const large = new Uint8Array(3_000_000).map((_, n) => n % 251);
  for (const allowBatched of [false, true]) {
    const store = await new Objm(nc).create(`${root.replaceAll(".", "_")}_${allowBatched}`, { allowBatched });
    await store.putBlob({ name: "large" }, large);
    assert.deepEqual(await store.getBlob("large"), large);
    await store.delete("large");
    assert.equal(await store.getBlob("large"), null);
    await store.destroy();
  }
}

(async () => {
  const [tcp, ws, prefix] = process.argv.slice(2);
  for (const [way, make, servers] of [["tcp", connect, tcp], ["ws", wsconnect, ws]]) {
    const nc = await make({ servers });
    await core(nc, `${prefix}.${way}`);
    await stored(nc, `${prefix}s.${way}`);
    await ingested(nc, `${prefix}f.${way}`);
    await objects(nc, `${prefix}o.${way}`);
    await nc.drain();
    console.log(way, "done");
  }
  console.log("OK");
})().catch((error) => { console.error(error); process.exit(1); });
