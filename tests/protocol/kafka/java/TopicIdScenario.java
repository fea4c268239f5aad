// Java 4's clients name topics by id: java -cp <kafka-clients 4 and its dependencies> TopicIdScenario.java <bootstrap> <name> <topic>
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.serialization.*;

public class TopicIdScenario {
    static String bootstrap;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        switch (args[1]) {
            case "missing" -> missing(args[2]);
            case "shared" -> shared(args[2]);
            case "described" -> described(args[2]);
            case "pattern" -> pattern(args[2]);
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
        settings.put("max.block.ms", 20_000);
        settings.put("delivery.timeout.ms", 30_000);
        settings.put("request.timeout.ms", 20_000);
        for (int i = 0; i < pairs.length; i += 2) settings.put(pairs[i], pairs[i + 1]);
        return settings;
    }

    static void check(Object actual, Object expected) {
        if (!Objects.equals(actual, expected)) throw new AssertionError(actual + " is not " + expected);
    }

    static List<String> take(Consumer<String, String> consumer, int count) {
        List<String> found = new ArrayList<>();
        long deadline = System.currentTimeMillis() + 30_000;
        while (found.size() < count) {
            if (System.currentTimeMillis() > deadline) throw new AssertionError("only " + found);
            consumer.poll(Duration.ofMillis(200)).forEach(record -> found.add(record.value()));
        }
        return found;
    }

    /** Write to a topic that nobody made, and again to another of the same producer. */
    static void missing(String topic) throws Exception {
        try (var producer = new KafkaProducer<String, String>(common())) {
            for (String name : List.of(topic, topic + "-second")) {
                for (int n = 0; n < 10; n++) producer.send(new ProducerRecord<>(name, "k", "v" + n)).get();
                try (var consumer = new KafkaConsumer<String, String>(common("group.id", name))) {
                    consumer.subscribe(List.of(name));
                    check(take(consumer, 10).get(9), "v9");
                }
            }
        }
    }

    /** A topic of the shared log that devices wrote to: read it, write to it, read on. */
    static void shared(String topic) throws Exception {
        try (var producer = new KafkaProducer<String, String>(common());
                var consumer = new KafkaConsumer<String, String>(common("group.id", topic))) {
            consumer.subscribe(List.of(topic));
            check(take(consumer, 1), List.of("from a device"));
            for (int n = 0; n < 10; n++) producer.send(new ProducerRecord<>(topic, "k", "v" + n)).get();
            check(take(consumer, 10).get(9), "v9");
        }
    }

    static void described(String topic) throws Exception {
        try (var admin = Admin.create(common())) {
            var id = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).topicId();
            var described = admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds().get().get(id);
            check(described.name(), topic);
            check(described.partitions().size(), 3);
        }
    }

    static void pattern(String topic) throws Exception {
        try (var producer = new KafkaProducer<String, String>(common());
                var consumer = new KafkaConsumer<String, String>(common("group.id", topic, "group.protocol", "consumer"))) {
            for (int n = 0; n < 10; n++) producer.send(new ProducerRecord<>(topic, "k", "v" + n));
            producer.flush();
            consumer.subscribe(new SubscriptionPattern(topic + ".*"));
            check(take(consumer, 10).get(9), "v9");
            check(consumer.assignment().size(), 3);
        }
    }
}
