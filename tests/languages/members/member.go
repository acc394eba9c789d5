// A worker of the tests in Go: examples/http/go, with a handler that writes down what it does: see
// tests/verify/history.py.
package main

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

var written, runs atomic.Int64

// The monotonic clock that all processes of a machine share.
func now() float64 {
	var at syscall.Timespec
	_, _, failed := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&at)), 0)
	if failed != 0 {
		log.Fatal(failed)
	}
	return float64(at.Sec) + float64(at.Nsec)/1e9
}

func write(path, kind, f string, job *Job, call string, err string, extra object) {
	text, _ := json.Marshal(object{
		"n": written.Add(1), "t": now(), "p": os.Getenv("P"), "type": kind, "f": f, "idem": call,
		"key": job.Key, "job": job.ID, "attempt": job.Attempt, "epoch": job.Epoch,
		"nonce": job.Worker, "err": err, "extra": extra,
	})
	file, failed := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if failed != nil {
		log.Fatal(failed)
	}
	defer file.Close()
	if _, failed := file.Write(append(text, '\n')); failed != nil {
		log.Fatal(failed)
	}
}

type broken struct{ text string }

func (b *broken) Error() string                { return b.text }
func (b *broken) Is(_ error) bool              { panic("is") }
func (b *broken) MarshalJSON() ([]byte, error) { panic("marshal") }

// Return what a handler may, and what breaks whoever looks at it.
func odd(kind string) (any, error) {
	switch kind {
	case "nil":
		var none *broken
		return 1, none
	case "is":
		return 1, &broken{"as it was told"}
	case "marshal":
		return &broken{}, nil
	case "channel":
		return make(chan int), nil
	}
	panic(nil)
}

func work(ctx context.Context, job *Job) (any, error) {
	var call, text string
	var spec struct {
		Ms, Fails int64
		Text      any
		Odd       string
	}
	err := errors.Join(json.Unmarshal(job.Args[0], &call), json.Unmarshal(job.Args[1], &text))
	if err = errors.Join(err, json.Unmarshal([]byte(text), &spec)); err != nil {
		return nil, err
	}
	ledger, run, sum := os.Getenv("LEDGER"), runs.Add(1), sha1.Sum([]byte(text))
	digest := hex.EncodeToString(sum[:])[:12]
	begin := object{"run": run, "digest": digest, "kind": "job", "attempts_max": 5}
	write(ledger, "ok", "start", job, call, "", begin)
	end := func(kind, err string) { write(ledger, kind, "end", job, call, err, object{"run": run}) }
	write(os.Getenv("EFFECTS"), "info", "effect", job, call, "", object{})
	select {
	case <-time.After(time.Duration(spec.Ms) * time.Millisecond):
	case <-ctx.Done():
		end("fail", "cancelled")
		return nil, ctx.Err()
	}
	if job.Attempt == 1 && spec.Odd != "" {
		end("fail", "error")
		return odd(spec.Odd)
	}
	if job.Attempt <= spec.Fails {
		end("fail", "error")
		return nil, errors.New("as it was told")
	}
	end("ok", "")
	return object{"call": call, "attempt": job.Attempt, "epoch": job.Epoch, "text": spec.Text}, nil
}

func number(name string) int {
	found, err := strconv.Atoi(os.Getenv(name))
	if err != nil {
		log.Fatal(err)
	}
	return found
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	worker := Worker{
		Gateways: &Gateways{
			Addresses: strings.Fields(os.Getenv("POOL_GATEWAYS")),
			Secret:    os.Getenv("POOL_WEB_WORKER"),
		},
		Handlers: map[string]Handler{"work": work},
		Capacity: number("CAPACITY"),
		Grace:    time.Duration(number("GRACE_S")) * time.Second,
	}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
