// What a worker does with a job: see worker.go.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// ErrForGood, wrapped, is a failure that another attempt would not mend.
var ErrForGood = errors.New("for good")

// Job is what a handler is given.
type Job struct {
	Token, Key, ID, Handler string
	Attempt, Epoch          int64
	Args                    []json.RawMessage
	State                   json.RawMessage
}

// Handler does a job.  It returns soon after its context has ended.
type Handler func(ctx context.Context, job *Job) (any, error)

// Run a job, and say what became of it until that is answered.
func (w *Worker) run(ctx context.Context, workerToken string, job Job) {
	path, told := "/complete", object{"token": job.Token}
	result, err := w.Handlers[job.Handler](ctx, &job)
	if err == nil {
		var text []byte
		text, err = json.Marshal(result)
		told["result"] = json.RawMessage(text)
	}
	if err != nil && ctx.Err() != nil {
		path, told = "/release", object{"token": job.Token}
	} else if err != nil {
		why := object{"type": fmt.Sprintf("%T", err), "message": err.Error()}
		retry := !errors.Is(err, ErrForGood)
		path, told = "/fail", object{"token": job.Token, "error": why, "retry": retry}
	}
	body := object{"worker_token": workerToken, "jobs": []object{told}}
	outcome := "refused"
	answer := w.Ask(context.Background(), path, 0, body)
	if len(answer.Jobs) == 1 && answer.Jobs[0].Outcome != "" {
		outcome = answer.Jobs[0].Outcome
	}
	say(object{
		"outcome": outcome, "key": job.Key, "id": job.ID, "attempt": job.Attempt, "epoch": job.Epoch,
	})
	w.ended <- job.Token
}

func say(line object) { json.NewEncoder(os.Stdout).Encode(line) }
