// Java's KafkaShareConsumer (kafka-clients 4.3): java -cp <jars> ShareScenario.java <bootstrap> <topic> <group>
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.serialization.*;

public class ShareScenario {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[2]);
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("key.deserializer", StringDeserializer.class);
        settings.put("value.deserializer", StringDeserializer.class);
        Map<String, Integer> seen = new TreeMap<>();
        try (var consumer = new KafkaShareConsumer<String, String>(settings)) {
            consumer.subscribe(List.of(args[1]));
            long deadline = System.currentTimeMillis() + 40_000;
            int accepted = 0;
            while (accepted < 20) {
                if (System.currentTimeMillis() > deadline) throw new AssertionError("only " + seen);
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                    int count = seen.merge(record.value(), 1, Integer::sum);
                    boolean again = count == 1 && record.value().endsWith("7");
                    if (record.deliveryCount().get() != count) throw new AssertionError(record.value() + ": " + record.deliveryCount());
                    consumer.acknowledge(record, again ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT);
                    if (!again) accepted++;
                }
                consumer.commitSync();
            }
        }
        if (seen.size() != 20 || seen.get("7") != 2 || seen.get("17") != 2) throw new AssertionError(seen.toString());
        System.out.println("OK");
    }
}
