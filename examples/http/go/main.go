// The handlers of a worker in Go: `go run .`, with the gateways' addresses in POOL_GATEWAYS (one or
// more, with spaces between them) and its secret in POOL_WEB_WORKER.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func add(_ context.Context, job *Job) (any, error) {
	sum := 0.0
	for _, arg := range job.Args {
		var number float64
		if err := json.Unmarshal(arg, &number); err != nil {
			return nil, err
		}
		sum += number
	}
	return sum, nil
}

func count(ctx context.Context, job *Job) (any, error) {
	var to int
	if err := json.Unmarshal(job.Args[0], &to); err != nil {
		return nil, err
	}
	for range to {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done(): // the job is to stop
			return nil, ctx.Err()
		}
	}
	return to, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	gateways := Gateways{
		Addresses: strings.Fields(os.Getenv("POOL_GATEWAYS")),
		Secret:    os.Getenv("POOL_WEB_WORKER"),
	}
	worker := Worker{
		Gateways: &gateways,
		Handlers: map[string]Handler{"add": add, "count": count},
		Capacity: 4,
		Grace:    30 * time.Second,
	}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
