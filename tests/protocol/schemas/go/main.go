// franz-go's registry client: types, registering, caching ids, look-ups, compatibility, deletion, errors.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/sr"
)

func check(err error) {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

func expect(ok bool, what string) {
	if !ok {
		fmt.Println("failed:", what)
		os.Exit(1)
	}
}

func main() {
	ctx := context.Background()
	client, err := sr.NewClient(sr.URLs(os.Args[1]))
	check(err)
	types, err := client.SupportedTypes(ctx)
	check(err)
	expect(len(types) == 3, "three types")
	subject := os.Args[2]
	schema := sr.Schema{Schema: `syntax = "proto3"; message M { int64 n = 1; }`, Type: sr.TypeProtobuf}
	made, err := client.CreateSchema(ctx, subject, schema)
	check(err)
	again, err := client.CreateSchema(ctx, subject, schema)
	check(err)
	expect(made.ID == again.ID && made.Version == 1, "the same id again")
	found, err := client.LookupSchema(ctx, subject, schema)
	check(err)
	expect(found.ID == made.ID, "looked up")
	byID, err := client.SchemaByID(ctx, made.ID)
	check(err)
	expect(byID.Type == sr.TypeProtobuf, "by id")
	uses, err := client.SchemaVersionsByID(ctx, made.ID)
	check(err)
	expect(len(uses) > 0, "versions by id")
	worse := sr.Schema{Schema: `syntax = "proto3"; message M { string n = 1; }`, Type: sr.TypeProtobuf}
	result, err := client.CheckCompatibility(sr.WithParams(ctx, sr.Verbose), subject, -1, worse)
	check(err)
	expect(!result.Is && len(result.Messages) > 0, "incompatible, and why")
	_, err = client.CreateSchema(ctx, subject, worse)
	var refused *sr.ResponseError
	expect(errors.As(err, &refused) && refused.ErrorCode == 409, "refused with 409")
	for _, one := range client.SetCompatibility(ctx, sr.SetCompatibility{Level: sr.CompatNone}, subject) {
		check(one.Err)
	}
	second, err := client.CreateSchema(ctx, subject, worse)
	check(err)
	expect(second.Version == 2, "a second version")
	serde := sr.NewSerde()
	serde.Register(made.ID, []byte(nil), sr.Index(0), sr.EncodeFn(func(v any) ([]byte, error) { return v.([]byte), nil }))
	data, err := serde.Encode([]byte{8, 7})
	check(err)
	expect(data[0] == 0 && len(data) == 8, "the wire format")
	fmt.Printf("value %x\n", data)
	versions, err := client.DeleteSubject(ctx, subject, sr.SoftDelete)
	check(err)
	expect(len(versions) == 2, "both versions deleted")
	_, err = client.SchemaByVersion(ctx, subject, 1)
	expect(errors.As(err, &refused) && refused.ErrorCode == 40401, "then it is not found")
	fmt.Println("OK")
}
