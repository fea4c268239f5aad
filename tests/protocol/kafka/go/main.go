// franz-go against a broker: go run . <bootstrap> <topic>. It writes to a topic that nobody made, and reads it in a group.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	bootstrap, topic := os.Args[1], os.Args[2]
	producer, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.AllowAutoTopicCreation())
	check(err)
	defer producer.Close()
	for n := 0; n < 100; n++ {
		record := &kgo.Record{Topic: topic, Key: []byte("k"), Value: []byte(fmt.Sprint(n))}
		check(producer.ProduceSync(ctx, record).FirstErr())
	}
	consumer, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	check(err)
	defer consumer.Close()
	for next := 0; next < 100; {
		fetches := consumer.PollFetches(ctx)
		check(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			if string(record.Value) != fmt.Sprint(next) {
				check(fmt.Errorf("%s came instead of %d", record.Value, next))
			}
			next++
		})
	}
	check(consumer.CommitUncommittedOffsets(ctx))
	fmt.Println("OK")
}
