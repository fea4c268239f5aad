// The Java client against a broker: java -cp <kafka-clients and its dependencies> Scenario.java <bootstrap> <name> [args]
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.*;

public class Scenario {
    static String bootstrap;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        switch (args[1]) {
            case "records" -> records(args[2]);
            case "transactions" -> transactions(args[2]);
            case "group" -> group(args[2], args[3]);
            case "admin" -> admin(args[2]);
            case "view" -> view(args[2], Integer.parseInt(args[3]));
            default -> throw new IllegalArgumentException(args[1]);
        }
        System.out.println("OK");
    }

    static Properties common(Object... pairs) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("key.serializer", StringSerializer.class);
        settings.put("value.serializer", StringSerializer.class);
        settings.put("key.deserializer", StringDeserializer.class);
        settings.put("value.deserializer", StringDeserializer.class);
        settings.put("auto.offset.reset", "earliest");
        for (int i = 0; i < pairs.length; i += 2) settings.put(pairs[i], pairs[i + 1]);
        return settings;
    }

    static void check(Object actual, Object expected) {
        if (!Objects.equals(actual, expected)) throw new AssertionError(actual + " is not " + expected);
    }

    static List<ConsumerRecord<String, String>> take(Consumer<String, String> consumer, int count) {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        long deadline = System.currentTimeMillis() + 30_000;
        while (found.size() < count) {
            if (System.currentTimeMillis() > deadline) throw new AssertionError("only " + found.size() + " of " + count);
            consumer.poll(Duration.ofMillis(200)).forEach(found::add);
        }
        return found;
    }

    static void records(String topic) throws Exception {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            try (var producer = new KafkaProducer<String, String>(common("compression.type", codec, "linger.ms", 20))) {
                for (int n = 0; n < 100; n++) {
                    var headers = List.<org.apache.kafka.common.header.Header>of(
                            new RecordHeader("h", new byte[] {0, -1}), new RecordHeader("null", null));
                    producer.send(new ProducerRecord<>(topic, null, 1_600_000_000_000L + n, "k" + n, codec + n, headers));
                }
            }
        }
        try (var consumer = new KafkaConsumer<String, String>(common("check.crcs", true))) {
            var at = new TopicPartition(topic, 0);
            consumer.assign(List.of(at));
            consumer.seekToBeginning(List.of(at));
            var found = take(consumer, 500);
            check(found.get(0).value(), "none0");
            check(found.get(499).value(), "zstd99");
            check(found.get(0).timestamp(), 1_600_000_000_000L);
            check(found.get(0).headers().lastHeader("null").value(), null);
            check(consumer.endOffsets(List.of(at)).get(at), 500L);
            check(consumer.offsetsForTimes(Map.of(at, 1_600_000_000_050L)).get(at).offset(), 50L);
        }
    }

    static void transactions(String topic) throws Exception {
        try (var producer = new KafkaProducer<String, String>(common("transactional.id", topic + "-id"));
                var consumer = new KafkaConsumer<String, String>(common("isolation.level", "read_committed", "group.id", topic + "-g"))) {
            producer.initTransactions();
            for (int n = 0; n < 4; n++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, "k", "v" + n)).get();
                if (n % 2 == 0) producer.commitTransaction(); else producer.abortTransaction();
            }
            consumer.subscribe(List.of(topic));
            var found = take(consumer, 2);
            check(found.stream().map(ConsumerRecord::value).toList(), List.of("v0", "v2"));
            producer.beginTransaction();
            var at = new TopicPartition(topic, 0);
            producer.sendOffsetsToTransaction(Map.of(at, new OffsetAndMetadata(3)), consumer.groupMetadata());
            producer.commitTransaction();
            check(consumer.committed(Set.of(at)).get(at).offset(), 3L);
        }
    }

    static void group(String topic, String protocol) throws Exception {
        try (var producer = new KafkaProducer<String, String>(common())) {
            for (int n = 0; n < 30; n++) producer.send(new ProducerRecord<>(topic, "k" + n, "v" + n));
        }
        var settings = common("group.id", topic + "-" + protocol, "group.protocol", protocol);
        Set<String> seen = new HashSet<>();
        try (var first = new KafkaConsumer<String, String>(settings)) {
            first.subscribe(List.of(topic));
            take(first, 30).forEach(record -> seen.add(record.value()));
            first.commitSync();
            try (var second = new KafkaConsumer<String, String>(settings)) {
                second.subscribe(List.of(topic));
                long deadline = System.currentTimeMillis() + 30_000;
                while (first.assignment().size() != 2 || second.assignment().size() != 2) {
                    if (System.currentTimeMillis() > deadline) throw new AssertionError(first.assignment() + " " + second.assignment());
                    first.poll(Duration.ofMillis(100));
                    second.poll(Duration.ofMillis(100));
                }
            }
        }
        check(seen.size(), 30);
    }

    static void admin(String topic) throws Exception {
        try (var admin = Admin.create(common())) {
            admin.createTopics(List.of(new NewTopic(topic, 3, (short) 1).configs(Map.of("retention.ms", "60000")))).all().get();
            var described = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
            check(described.partitions().size(), 3);
            if (described.topicId().equals(Uuid.ZERO_UUID)) throw new AssertionError("no topic id");
            var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            var config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
            check(config.get("retention.ms").value(), "60000");
            check(config.get("retention.ms").source(), ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(
                    new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND)))).all().get();
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all().get();
            var at = new TopicPartition(topic, 4);
            check(admin.listOffsets(Map.of(at, OffsetSpec.latest())).all().get().get(at).offset(), 0L);
            check(admin.listOffsets(Map.of(at, OffsetSpec.maxTimestamp())).all().get().get(at).offset(), -1L);
            check(admin.describeCluster().nodes().get().size(), 1);
            check(admin.listTransactions().all().get() != null, true);
            check(admin.describeLogDirs(List.of(1)).allDescriptions().get().size(), 1);
            check(admin.listConsumerGroups().all().get() != null, true);
            check(admin.describeProducers(List.of(at)).all().get().size(), 1);
            admin.deleteTopics(List.of(topic)).all().get();
            try {
                admin.describeTopics(List.of(topic)).allTopicNames().get();
                throw new AssertionError("it is still there");
            } catch (ExecutionException gone) {
                check(gone.getCause().getClass().getSimpleName(), "UnknownTopicOrPartitionException");
            }
        }
    }

    /** Two matches, a stretch of `noise` records after each: the position moves beyond the last of them. */
    static void view(String view, int noise) throws Exception {
        for (String level : List.of("read_committed", "read_uncommitted")) {
            try (var consumer = new KafkaConsumer<String, String>(common("isolation.level", level, "fetch.max.wait.ms", 100))) {
                var at = new TopicPartition(view, 0);
                consumer.assign(List.of(at));
                consumer.seekToBeginning(List.of(at));
                var found = take(consumer, 2);
                check(found.stream().map(ConsumerRecord::value).toList(), List.of("first", "second"));
                long deadline = System.currentTimeMillis() + 20_000;
                while (consumer.position(at) < found.get(1).offset() + noise) {
                    if (System.currentTimeMillis() > deadline) throw new AssertionError("stuck at " + consumer.position(at));
                    check(consumer.poll(Duration.ofMillis(100)).count(), 0);
                }
            }
        }
    }
}
