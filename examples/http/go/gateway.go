// What a worker asks the gateways of a pool: see worker.go.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"sync/atomic"
	"time"
)

type object = map[string]any

// Gateways are as good as each other: whichever answers will do.
type Gateways struct {
	Addresses []string
	Secret    string // a secret of the role `worker`

	answerS float64 // longer than any takes, beside what a poll waits
	at      atomic.Int64
}

// Answer is what any of them says.
type Answer struct {
	sent   time.Time // when it was asked
	status int

	Worker, Token string
	Title, Detail string  // of a refusal
	HeartbeatS    float64 `json:"heartbeat_s"`
	ExpiresInS    float64 `json:"expires_in_s"`
	PollMaxS      float64 `json:"poll_max_s"`
	Drain         bool
	RegisterAgain bool `json:"register_again"`
	Stop, Lost    []struct{ Token, Reason string }
	Jobs          []struct {
		Job
		Outcome string
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Ask one after the other until one answers; returns nil if the context ends before.
func (g *Gateways) Ask(ctx context.Context, path string, waitS float64, body object) *Answer {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // results are encoded before
	}
	for pause := 50 * time.Millisecond; ctx.Err() == nil; pause = min(2*pause, time.Second) {
		within, cancel := context.WithTimeout(ctx, seconds(waitS+g.answerS))
		answer, err := g.post(within, path, text)
		cancel()
		if err == nil && answer.status < 500 && answer.status != 429 && answer.status != 408 {
			return answer
		}
		g.at.Add(1)
		time.Sleep(pause)
	}
	return nil
}

func (g *Gateways) post(ctx context.Context, path string, text []byte) (*Answer, error) {
	url := g.Addresses[int(g.at.Load())%len(g.Addresses)] + "/v1/workers" + path
	request, err := http.NewRequestWithContext(ctx, "POST", url, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+g.Secret)
	request.Header.Set("Content-Type", "application/json")
	answer := &Answer{sent: time.Now()}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	answer.status = response.StatusCode
	return answer, json.NewDecoder(response.Body).Decode(answer)
}
