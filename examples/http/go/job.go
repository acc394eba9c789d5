// What a worker does with a job: see worker.go.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

// ErrForGood, wrapped, is a failure that another attempt would not mend.
var ErrForGood = errors.New("for good")

// Job is what a handler is given.
type Job struct {
	Token, Key, ID, Handler, Worker string
	Attempt, Epoch                  int64
	Args                            []json.RawMessage
	State                           json.RawMessage
}

// Handler does a job.  It returns soon after its context has ended.
type Handler func(ctx context.Context, job *Job) (any, error)

// Run a job, and say what became of it until that is answered.
func (w *Worker) run(ctx context.Context, workerToken string, job Job) {
	tell := func(path string, said object) (string, error) {
		said["token"] = job.Token
		body := object{"worker_token": workerToken, "jobs": []object{said}}
		answer := w.Ask(context.Background(), path, 0, body)
		if len(answer.Jobs) == 1 && answer.Jobs[0].Outcome != "" {
			return answer.Jobs[0].Outcome, nil
		} else if len(answer.Jobs) == 1 {
			return "refused", fmt.Errorf("%w: %s", ErrForGood, answer.Jobs[0].Problem.Detail)
		}
		return "refused", fmt.Errorf("%w: %s", ErrForGood, answer.Detail)
	}
	var outcome string
	result, err := w.Handlers[job.Handler](ctx, &job)
	if err == nil {
		var text []byte
		if text, err = json.Marshal(result); err == nil {
			outcome, err = tell("/complete", object{"result": json.RawMessage(text)})
		}
	}
	if err != nil && ctx.Err() != nil {
		outcome, _ = tell("/release", object{})
	} else if err != nil { // a result may be refused, too
		why := object{"type": fmt.Sprintf("%T", err), "message": err.Error()}
		outcome, _ = tell("/fail", object{"error": why, "retry": !errors.Is(err, ErrForGood)})
	}
	say(object{
		"outcome": outcome, "key": job.Key, "id": job.ID, "attempt": job.Attempt, "epoch": job.Epoch,
	})
	w.ended <- job.Token
}

// Forget what has ended; wait so long for the first.
func (w *Worker) reap(within time.Duration) {
	select {
	case token := <-w.ended:
		delete(w.held, token)
		w.reap(0)
	case <-time.After(within):
	}
}

func say(line object) { json.NewEncoder(os.Stdout).Encode(line) }
