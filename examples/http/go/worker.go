// A worker of a pool over HTTP, with Go's standard library alone: see main.go.
//
// So that no job runs in two places at a time:
//   - Who has no answer for expires_in_s, counted from when it asked, stops its handlers: their
//     contexts end.  Somebody else may have their jobs soon.
//   - A job is held, and said to be, until what became of it has been answered.
//   - A job that is handed out again, because an answer was lost, is known by its token.
package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

const pollS = 20.0

// Worker runs jobs of a pool.
type Worker struct {
	*Gateways
	Handlers map[string]Handler
	Capacity int           // jobs at a time
	Grace    time.Duration // for what runs when it is to leave

	held     map[string]context.CancelFunc // by token: ends what runs
	ended    chan string                   // tokens of what has ended
	lease    context.Context               // of what runs
	expire   context.CancelFunc
	expiry   *time.Timer // expires the lease at
	deadline time.Time   // of our own clock
	leaving  time.Time   // since then
}

// Run works until the context ends, gives back what does not end within the grace, and leaves.
func (w *Worker) Run(ctx context.Context) error {
	names := []string{}
	for name := range w.Handlers {
		names = append(names, name)
	}
	host, _ := os.Hostname()
	about := object{"handlers": names, "capacity": w.Capacity, "host": host, "pid": os.Getpid()}
	for isAgain := true; isAgain; {
		w.answerS = 5.0
		me := w.Ask(ctx, "", 0, about)
		if me == nil {
			return nil // told to leave before anybody has answered
		} else if me.status != 201 {
			return fmt.Errorf("%s: %s", me.Title, me.Detail)
		}
		say(object{"worker": me.Worker})
		w.answerS = 2 * me.HeartbeatS // so that one that hangs does not cost the lease
		w.held, w.ended = map[string]context.CancelFunc{}, make(chan string, w.Capacity)
		w.lease, w.expire = context.WithCancel(context.Background())
		w.expiry = time.AfterFunc(seconds(me.ExpiresInS), w.expire)
		var err error
		if isAgain, err = w.serve(ctx, me); err != nil {
			return err
		}
		for w.expire(); len(w.held) > 0; { // what is left is not ours any more
			delete(w.held, <-w.ended)
		}
	}
	return nil
}

// Poll where there is room, else beat, until all is over; says whether to register again.
func (w *Worker) serve(ctx context.Context, me *Answer) (bool, error) {
	for w.isBusy(ctx) {
		tokens, room, answer := []string{}, w.Capacity-len(w.held), (*Answer)(nil)
		for token := range w.held {
			tokens = append(tokens, token)
		}
		body := object{"worker_token": me.Token, "held": tokens}
		if room > 0 && w.leaving.IsZero() {
			waitS := min(pollS, me.PollMaxS)
			if len(w.held) > 0 {
				waitS = me.HeartbeatS // this poll is their renewal
			}
			body["jobs_max"], body["wait_s"] = room, waitS
			answer = w.Ask(ctx, "/poll", waitS, body)
		} else {
			answer = w.Ask(context.Background(), "/heartbeat", 0, body)
		}
		switch {
		case answer == nil:
			continue // leaving gives back what this poll would have brought
		case answer.status == 410 || answer.RegisterAgain:
			return true, nil
		case answer.status != 200:
			return false, fmt.Errorf("%s: %s", answer.Title, answer.Detail)
		}
		w.heed(me.Token, answer)
		wait := time.Duration(0)
		if len(w.held) >= w.Capacity || !w.leaving.IsZero() {
			wait = seconds(me.HeartbeatS)
		}
		w.reap(wait)
	}
	left := max(seconds(w.answerS), time.Until(w.deadline)) // then it lapses anyway
	ctx, cancel := context.WithTimeout(context.Background(), left)
	defer cancel()
	w.Ask(ctx, "/leave", 0, object{"worker_token": me.Token})
	return false, nil
}

// Say whether there is anything left to do: until told to leave, there is.
func (w *Worker) isBusy(ctx context.Context) bool {
	if w.leaving.IsZero() && ctx.Err() != nil {
		w.leaving = time.Now()
	}
	if !w.leaving.IsZero() && time.Since(w.leaving) > w.Grace {
		w.expire()
	}
	return w.leaving.IsZero() || len(w.held) > 0
}

// Do what an answer says.
func (w *Worker) heed(workerToken string, answer *Answer) {
	w.deadline = answer.sent.Add(seconds(answer.ExpiresInS))
	left := time.Until(w.deadline)
	w.expiry.Stop()
	if w.lease.Err() != nil { // what began under that one ends
		w.lease, w.expire = context.WithCancel(context.Background())
	}
	w.expiry = time.AfterFunc(left, w.expire)
	for _, told := range append(answer.Stop, answer.Lost...) {
		if end := w.held[told.Token]; end != nil {
			end()
		}
	}
	for _, told := range answer.Jobs {
		if w.held[told.Token] == nil && left > 0 { // what comes too late is handed out again
			ctx, end := context.WithCancel(w.lease)
			w.held[told.Token] = end
			go w.run(ctx, workerToken, told.Job)
		}
	}
	if answer.Drain && w.leaving.IsZero() {
		w.leaving = time.Now()
	}
}
