// peer nats://HOST:PORT PREFIX: nats.go publishes, subscribes, asks and uses JetStream; OK if all went well.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func must(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func check(right bool, what string) {
	if !right {
		must(errors.New(what))
	}
}

func core(nc *nats.Conn, root string) {
	everything, err := nc.SubscribeSync(root + ".>")
	must(err)
	var worked atomic.Int64
	for n := 0; n < 3; n++ {
		_, err = nc.QueueSubscribe(root+".*", "workers", func(*nats.Msg) { worked.Add(1) })
		must(err)
	}
	must(nc.Flush())
	for n := 0; n < 1000; n++ {
		message := nats.NewMsg(root + "." + strconv.Itoa(n%5))
		message.Data = []byte(strconv.Itoa(n))
		message.Header.Add("N", strconv.Itoa(n))
		message.Header.Add("N", "again")
		must(nc.PublishMsg(message))
	}
	for n := 0; n < 1000; n++ {
		got, err := everything.NextMsg(10 * time.Second)
		must(err)
		check(string(got.Data) == strconv.Itoa(n) && len(got.Header.Values("N")) == 2, "a message out of order")
	}
	must(nc.Flush())
	for deadline := time.Now().Add(10 * time.Second); worked.Load() < 1000 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	check(worked.Load() == 1000, "the queue group got another number")
	must(everything.Unsubscribe())
	_, err = nc.Subscribe(root+".ask.me", func(message *nats.Msg) { message.Respond(message.Data) })
	must(err)
	answer, err := nc.Request(root+".ask.me", []byte("hello"), 10*time.Second)
	must(err)
	check(string(answer.Data) == "hello", "another answer")
	_, err = nc.Request(root+".ask.nobody", nil, 10*time.Second)
	check(errors.Is(err, nats.ErrNoResponders), "somebody responded")
}

func stored(nc *nats.Conn, root string) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	js, err := jetstream.New(nc)
	must(err)
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: root, Subjects: []string{root + ".>"}})
	must(err)
	for n := uint64(1); n <= 50; n++ {
		ack, err := js.Publish(ctx, root+".a", []byte(strconv.FormatUint(n, 10)))
		must(err)
		check(ack.Sequence == n, "another sequence")
	}
	consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy})
	must(err)
	batch, err := consumer.Fetch(50, jetstream.FetchMaxWait(10*time.Second))
	must(err)
	count := 0
	for message := range batch.Messages() {
		count++
		check(string(message.Data()) == strconv.Itoa(count), "a stored message out of order")
		must(message.DoubleAck(ctx))
	}
	check(count == 50, "another number of stored messages")
	bucket, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: root})
	must(err)
	revision, err := bucket.Create(ctx, "key", []byte("one"))
	must(err)
	_, err = bucket.Update(ctx, "key", []byte("two"), revision)
	must(err)
	_, err = bucket.Update(ctx, "key", []byte("three"), revision)
	check(err != nil, "an old revision was accepted")
	entry, err := bucket.Get(ctx, "key")
	must(err)
	check(string(entry.Value()) == "two", "another value")
}

func main() {
	nc, err := nats.Connect(os.Args[1], nats.Timeout(10*time.Second))
	must(err)
	core(nc, os.Args[2])
	stored(nc, os.Args[2]+"s")
	must(nc.Drain())
	fmt.Println("OK")
}
