// A worker of a pool over HTTP, with Go's standard library alone: see main.go.
//
// So that no job runs in two places at a time:
//   - Who has no answer for expires_in_s, counted from when it asked, stops its handlers: their
//     contexts end.  Somebody else may have their jobs soon.
//   - A job is held, and said to be, until what became of it has been answered.
//   - A job that is handed out again, because an answer was lost, is known by its token.
//   - Told to leave, by its context or a drain, it takes no more: `leave`.  It still polls, for what
//     an answer that was lost may have brought: that it gives back.
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
	lost     map[string]bool               // what of it is not ours, and is named no more
	ended    chan string                   // tokens of what has ended
	grace    context.Context               // ends so long after it was told to leave
	lease    context.Context               // of what runs
	expire   context.CancelFunc
	expiry   *time.Timer     // expires the lease at
	deadline time.Time       // of our own clock
	leaving  context.Context // ends when it is to leave
	leave    context.CancelFunc
}

// Run works until the context ends, gives back what does not end within the grace, and leaves.
func (w *Worker) Run(ctx context.Context) error {
	names := []string{}
	for name := range w.Handlers {
		names = append(names, name)
	}
	host, _ := os.Hostname()
	about := object{"handlers": names, "capacity": w.Capacity, "host": host, "pid": os.Getpid()}
	w.leaving, w.leave = context.WithCancel(ctx)
	defer w.leave()
	grace, giveUp := context.WithCancel(context.Background())
	context.AfterFunc(w.leaving, func() { time.AfterFunc(w.Grace, giveUp) })
	for isAgain := true; isAgain; {
		w.answerS = 5.0
		me := w.Ask(w.leaving, "", 0, about)
		if me == nil {
			return nil // told to leave before anybody has answered
		} else if me.status != 201 {
			return fmt.Errorf("%s: %s", me.Title, me.Detail)
		}
		say(object{"worker": me.Worker})
		w.answerS = 2 * me.HeartbeatS // so that one that hangs does not cost the lease
		w.held, w.ended = map[string]context.CancelFunc{}, make(chan string, w.Capacity)
		w.lost = map[string]bool{}
		w.grace = grace
		w.lease, w.expire = context.WithCancel(grace)
		w.expiry = time.AfterFunc(seconds(me.ExpiresInS), w.expire)
		var err error
		isAgain, err = w.serve(me)
		for w.expire(); len(w.held) > 0; { // what is left is not ours any more, or soon will not be
			delete(w.held, <-w.ended)
		}
		left := seconds(w.answerS)
		if !isAgain {
			left = max(left, time.Until(w.deadline)) // then it lapses anyway
		}
		within, cancel := context.WithTimeout(context.Background(), left)
		w.Ask(within, "/leave", 0, object{"worker_token": me.Token}) // gives back what it never heard of
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// Poll until there is nothing left to do; says whether to register again.
func (w *Worker) serve(me *Answer) (bool, error) {
	for refused := false; w.leaving.Err() == nil || len(w.held) > 0; {
		tokens, room := []string{}, max(0, w.Capacity-len(w.held))
		waitS, until := 0.0, context.Background()
		for token := range w.held {
			if !w.lost[token] {
				tokens = append(tokens, token)
			}
		}
		if w.leaving.Err() != nil {
			room = 0
		} else if room > 0 {
			waitS, until = min(pollS, me.PollMaxS), w.leaving
			if len(w.held) > 0 {
				waitS = me.HeartbeatS // this poll is their renewal
			}
		}
		answer := w.Ask(until, "/poll", waitS, object{
			"worker_token": me.Token, "held": tokens, "jobs_max": room, "wait_s": waitS,
		})
		switch {
		case answer == nil:
			continue // what this poll would have brought the next one brings
		case answer.status == 410 || answer.RegisterAgain:
			return true, nil
		case answer.status != 200 && refused:
			return false, fmt.Errorf("%s: %s", answer.Title, answer.Detail)
		}
		if refused = answer.status != 200; !refused {
			w.heed(me.Token, answer)
		}
		wait := time.Duration(0)
		if room == 0 || len(w.held) >= w.Capacity {
			wait = seconds(me.HeartbeatS)
		}
		w.reap(wait)
	}
	return false, nil
}
