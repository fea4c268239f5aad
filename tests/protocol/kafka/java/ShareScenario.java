// Java's KafkaShareConsumer (kafka-clients 4.3): java -cp <jars> ShareScenario.java <bootstrap> <topic> <group> <acquire mode> <max records>
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
        settings.put("share.acquire.mode", args[3]);
        settings.put("max.poll.records", args[4]);
        boolean limited = args[3].equals("record_limit");
        int most = 0;
        Map<String, Integer> seen = new TreeMap<>();
        try (var consumer = new KafkaShareConsumer<String, String>(settings)) {
            consumer.subscribe(List.of(args[1]));
            long deadline = System.currentTimeMillis() + 40_000;
            int accepted = 0;
            while (accepted < 20) {
                if (System.currentTimeMillis() > deadline) throw new AssertionError("only " + seen);
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(500));
                most = Math.max(most, records.count());
                for (ConsumerRecord<String, String> record : records) {
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
        if (limited != most <= Integer.parseInt(args[4])) throw new AssertionError(most + " at once");
        System.out.println("OK");
    }
}
