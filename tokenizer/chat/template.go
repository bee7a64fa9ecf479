package chat

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Template is a compiled chat template.
type Template struct {
	engine  *Engine
	request []byte // what loads it into an instance

	mu      sync.Mutex
	idle    []*instance
	retired bool // out of the cache: instances are closed after use
}

// Input is a conversation and what else the template may read. Values are what encoding/json makes JSON of. The order
// of an object's keys and the difference between 1 and 1.0 can show in the text: pass json.RawMessage where they count
// (a Go map has its keys sorted).
type Input struct {
	Messages            []any
	Tools               []any // nil: the template sees none
	Documents           []any // nil: the template sees none
	AddGenerationPrompt bool
	// ContinueFinalMessage ends the text where the last message's content ends. Not together with AddGenerationPrompt.
	ContinueFinalMessage bool
	// Special has bos_token and the like by name. They count as text of the template.
	Special map[string]string
	// Vars are further variables by name; they win over all others and count as text of the conversation.
	Vars map[string]any
	// Now is what strftime_now formats, in its own location; the zero time means the present.
	Now time.Time
}

// Result is rendered text. Ranges are pairs of start and end in bytes of Text, in order.
type Result struct {
	Text       string
	Generation [][2]int // bodies of the template's generation blocks; a range can be empty
	Template   [][2]int // what the template itself wrote; neither touching nor overlapping
}

// Control reports whether bytes [start,end) of the text may be read as one control token: whether the template wrote
// the first and the last of them. What lies between may be the conversation's, as in "<|" + role + "|>".
func (r *Result) Control(start, end int) bool {
	return start < end && r.wrote(start) && r.wrote(end-1)
}

// wrote says whether the template wrote the byte at i.
func (r *Result) wrote(i int) bool {
	at, found := slices.BinarySearchFunc(r.Template, i, func(x [2]int, i int) int {
		switch {
		case x[1] <= i:
			return -1
		case x[0] > i:
			return 1
		}
		return 0
	})
	return found && at < len(r.Template)
}

// Render makes the text of a conversation.
func (t *Template) Render(ctx context.Context, in Input) (Result, error) {
	request, err := t.encode(in)
	if err != nil {
		return Result{}, err
	}
	release, err := t.engine.acquire(ctx)
	if err != nil {
		return Result{}, err
	}
	defer release()
	inst := t.take()
	if inst == nil {
		if inst, err = t.open(ctx); err != nil {
			return Result{}, err
		}
	}
	defer t.put(inst)
	payload, err := inst.call(ctx, "run", request)
	if err != nil {
		return Result{}, err
	}
	return decode(payload)
}

func (t *Template) take() *instance {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.idle) == 0 {
		return nil
	}
	in := t.idle[len(t.idle)-1]
	t.idle = t.idle[:len(t.idle)-1]
	t.engine.idle.Add(-in.bytes())
	return in
}

// put takes an instance back, or closes one that is of no further use.
func (t *Template) put(in *instance) {
	if !in.broken && in.bytes() <= keepBytes {
		t.mu.Lock()
		if !t.retired && len(t.idle) < idleInstances {
			t.idle = append(t.idle, in)
			t.engine.idle.Add(in.bytes())
			in = nil
		}
		t.mu.Unlock()
	}
	if in != nil {
		in.close()
	}
	t.engine.shrink()
}

// drop closes the instances that wait, and with retire lets none wait any more.
func (t *Template) drop(retire bool) {
	t.mu.Lock()
	idle := t.idle
	t.idle, t.retired = nil, t.retired || retire
	for _, in := range idle {
		t.engine.idle.Add(-in.bytes())
	}
	t.mu.Unlock()
	for _, in := range idle {
		in.close()
	}
}

// encode makes the module's request.
func (t *Template) encode(in Input) ([]byte, error) {
	if in.ContinueFinalMessage && in.AddGenerationPrompt {
		return nil, fmt.Errorf("render chat template: continue_final_message together with add_generation_prompt; use one of them: %w", ErrContinue)
	}
	vars := map[string]any{
		"messages": orEmpty(in.Messages), "tools": orNull(in.Tools), "documents": orNull(in.Documents),
		"add_generation_prompt": in.AddGenerationPrompt,
	}
	special := []string{}
	for name, v := range in.Special {
		vars[name] = v
		special = append(special, name)
	}
	for name, v := range in.Vars {
		vars[name] = v
		special = slices.DeleteFunc(special, func(s string) bool { return s == name })
	}
	slices.Sort(special)
	now := in.Now
	if now.IsZero() {
		now = time.Now()
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	err := enc.Encode(map[string]any{
		"vars": vars, "special": special, "continue": in.ContinueFinalMessage, "output": t.engine.limits.Output,
		"now": [9]int{now.Year(), int(now.Month()), now.Day(), now.Hour(), now.Minute(), now.Second(),
			now.Nanosecond() / 1000, (int(now.Weekday()) + 6) % 7, now.YearDay()},
	})
	if err != nil {
		return nil, fmt.Errorf("render chat template: encode the variables: %v: %w", err, ErrInput)
	}
	if limit := t.engine.limits.Input; buf.Len() > limit {
		return nil, &LimitError{Limit: "input", Detail: fmt.Sprintf("%d bytes, the limit is %d", buf.Len(), limit)}
	}
	return buf.Bytes(), nil
}

// orNull makes a list that isn't there None, as the reference has it.
func orNull(list []any) any {
	if list == nil {
		return nil
	}
	return list
}

func orEmpty(list []any) []any {
	if list == nil {
		return []any{}
	}
	return list
}

// decode reads the ranges and the text of a reply.
func decode(payload []byte) (Result, error) {
	var r Result
	for _, ranges := range []*[][2]int{&r.Template, &r.Generation} {
		if len(payload) < 4 {
			return Result{}, fmt.Errorf("render chat template: short reply: %w", ErrRender)
		}
		n := int(binary.LittleEndian.Uint32(payload))
		if payload = payload[4:]; len(payload)/8 < n {
			return Result{}, fmt.Errorf("render chat template: short reply: %w", ErrRender)
		}
		*ranges = make([][2]int, n)
		for i := range n {
			(*ranges)[i] = [2]int{
				int(binary.LittleEndian.Uint32(payload[8*i:])), int(binary.LittleEndian.Uint32(payload[8*i+4:])),
			}
		}
		payload = payload[8*n:]
	}
	r.Text = string(payload)
	return r, nil
}
