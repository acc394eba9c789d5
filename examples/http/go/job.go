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

// Do what an answer says.
func (w *Worker) heed(workerToken string, answer *Answer) {
	w.deadline = answer.sent.Add(seconds(answer.ExpiresInS))
	left := time.Until(w.deadline)
	w.expiry.Stop()
	if w.lease.Err() != nil { // what began under that one ends
		w.lease, w.expire = context.WithCancel(w.grace)
	}
	w.expiry = time.AfterFunc(left, w.expire)
	for _, told := range append(answer.Stop, answer.Lost...) {
		if end := w.held[told.Token]; end != nil {
			end()
		}
	}
	for _, told := range answer.Lost {
		w.lost[told.Token] = true
	}
	if answer.Drain {
		w.leave()
	}
	for _, told := range answer.Jobs {
		if w.held[told.Token] == nil && left > 0 { // what comes too late is handed out again
			ctx, end := context.WithCancel(w.lease)
			w.held[told.Token] = end
			if w.leaving.Err() != nil {
				end() // it is given back, and does not begin
			}
			go w.run(ctx, workerToken, told.Job)
		}
	}
}

// Run a job, and say what became of it until that is answered.
func (w *Worker) run(ctx context.Context, workerToken string, job Job) {
	tell := func(path string, said object) (string, error) {
		said["token"] = job.Token
		body := object{"worker_token": workerToken, "jobs": []object{said}}
		answer := w.Ask(context.Background(), path, 0, body)
		if answer.status == 200 {
			return answer.Jobs[0].Outcome, nil
		} else if answer.status == 409 || answer.status == 410 { // somebody else's, or it has ended
			return "refused", errors.New(answer.Detail)
		}
		return "", fmt.Errorf("%w: %s", ErrForGood, answer.Detail)
	}
	var outcome string
	result, err := w.handle(ctx, &job)
	if err == nil {
		outcome, err = tell("/complete", object{"result": result})
	}
	if err != nil && ctx.Err() != nil {
		outcome, err = tell("/release", object{})
	} else if err != nil { // a result may be refused, too
		outcome, err = tell("/fail", failure(err))
	}
	if outcome == "" { // whatever was wrong with what we said, the job has failed
		outcome, _ = tell("/fail", failure(err))
	}
	if outcome == "" {
		outcome = "refused"
	}
	say(object{
		"outcome": outcome, "key": job.Key, "id": job.ID, "attempt": job.Attempt, "epoch": job.Epoch,
	})
	w.ended <- job.Token
}

// Call the handler, and encode its result; not if the job is to end already.
func (w *Worker) handle(ctx context.Context, job *Job) (text json.RawMessage, err error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			err = fmt.Errorf("panic: %v", thrown)
		}
	}()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	result, err := w.Handlers[job.Handler](ctx, job)
	if err != nil {
		return nil, err
	}
	return json.Marshal(result) // this may panic, too
}

// Say of an error what a gateway takes.
func failure(err error) (said object) {
	message := fmt.Sprint(err) // other than its Error() this does not panic
	message = message[:min(len(message), 2000)]
	why := object{"type": fmt.Sprintf("%T", err), "message": message}
	said = object{"error": why, "retry": true}
	defer func() { recover() }() // its Is or Unwrap may panic
	said["retry"] = !errors.Is(err, ErrForGood)
	return said
}

// Forget what has ended; wait so long for the first.
func (w *Worker) reap(within time.Duration) {
	select {
	case token := <-w.ended:
		delete(w.held, token)
		delete(w.lost, token)
		w.reap(0)
	case <-time.After(within):
	}
}

func say(line object) { json.NewEncoder(os.Stdout).Encode(line) }
