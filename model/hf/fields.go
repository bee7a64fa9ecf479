package hf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// object splits a JSON object into its members, refusing one that appears twice: readers differ on which of the two counts.
func object(text []byte) (map[string]json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("%w: not a JSON object", ErrInvalid)
	}
	members := map[string]json.RawMessage{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("%w: not JSON: %w", ErrInvalid, err)
		}
		name, _ := t.(string) // a member's name is always a string
		if _, twice := members[name]; twice {
			return nil, fmt.Errorf("%w: field %q appears twice", ErrInvalid, shorten(name))
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, fmt.Errorf("%w: field %q is not JSON (NaN and Infinity are not): %w", ErrInvalid, shorten(name), err)
		}
		members[name] = value
	}
	if _, err := dec.Token(); err != nil {
		return nil, fmt.Errorf("%w: the JSON object is not closed", ErrInvalid)
	}
	if dec.More() {
		return nil, fmt.Errorf("%w: text follows the JSON object", ErrInvalid)
	}
	return members, nil
}

// reader takes typed values out of an object and collects everything that is wrong with them, so that one attempt tells
// the user all of it.
type reader struct {
	members  map[string]json.RawMessage
	prefix   string // of the members' names in messages
	problems *[]string
}

func (r *reader) problem(format string, args ...any) {
	const most = 20
	if len(*r.problems) < most {
		*r.problems = append(*r.problems, fmt.Sprintf(format, args...))
	}
}

// find returns the first of the names that is present and not null. If several are, they must agree.
func (r *reader) find(names ...string) (name string, value json.RawMessage) {
	for _, n := range names {
		v, ok := r.members[n]
		if !ok || isNull(v) {
			continue
		}
		if value == nil {
			name, value = n, v
		} else if !same(value, v) {
			r.problem("%s%s is %s but %s%s is %s: remove one of them", r.prefix, name, brief(value), r.prefix, n, brief(v))
		}
	}
	return r.prefix + name, value
}

func (r *reader) integer(low, high int, names ...string) *int {
	name, value := r.find(names...)
	if value == nil {
		return nil
	}
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil || n < int64(low) || n > int64(high) {
		r.problem("%s is %s: a whole number from %d to %d is needed", name, brief(value), low, high)
		return nil
	}
	v := int(n)
	return &v
}

// required is integer for a field without which nothing can be built; it says whether the value is good.
func (r *reader) required(dst *int, low, high int, names ...string) bool {
	before := len(*r.problems)
	v := r.integer(low, high, names...)
	if v == nil {
		if len(*r.problems) == before {
			r.problem("%s%s is missing: a whole number from %d to %d is needed", r.prefix, names[0], low, high)
		}
		return false
	}
	*dst = *v
	return true
}

func (r *reader) number(low, high float64, names ...string) *float64 {
	name, value := r.find(names...)
	if value == nil {
		return nil
	}
	v, ok := parseNumber(value)
	if !ok || v < low || v > high {
		r.problem("%s is %s: a number from %g to %g is needed", name, brief(value), low, high)
		return nil
	}
	return &v
}

func parseNumber(value []byte) (float64, bool) {
	if len(value) == 0 || value[0] != '-' && (value[0] < '0' || value[0] > '9') {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(value), 64)
	return v, err == nil && !math.IsInf(v, 0) && !math.IsNaN(v)
}

func (r *reader) boolean(names ...string) *bool {
	name, value := r.find(names...)
	if value == nil {
		return nil
	}
	v := string(value) == "true"
	if !v && string(value) != "false" {
		r.problem("%s is %s: true or false is needed", name, brief(value))
		return nil
	}
	return &v
}

func (r *reader) text(names ...string) string {
	name, value := r.find(names...)
	if value == nil {
		return ""
	}
	var s string
	if json.Unmarshal(value, &s) != nil || len(s) > 255 {
		r.problem("%s is %s: a text of at most 255 bytes is needed", name, brief(value))
		return ""
	}
	return s
}

// list reads an array of at most limit elements.
func list[T any](r *reader, limit int, kind string, check func(T) bool, names ...string) []T {
	name, value := r.find(names...)
	if value == nil {
		return nil
	}
	var parts []json.RawMessage
	if json.Unmarshal(value, &parts) != nil {
		r.problem("%s is %s: a list of %s is needed", name, brief(value), kind)
		return nil
	}
	if len(parts) > limit {
		r.problem("%s has %d elements: at most %d are allowed", name, len(parts), limit)
		return nil
	}
	out := make([]T, 0, len(parts))
	for i, part := range parts {
		var v T
		if isNull(part) || json.Unmarshal(part, &v) != nil || check != nil && !check(v) {
			r.problem("%s[%d] is %s: %s are needed", name, i, brief(part), kind)
			return nil
		}
		out = append(out, v)
	}
	return out
}

// tokens reads token ids, written as one number or as a list. Some published files write -1 for "none".
func (r *reader) tokens(name string) []int {
	_, value := r.find(name)
	if value == nil {
		return nil
	}
	one := &reader{members: map[string]json.RawMessage{name: value}, prefix: r.prefix, problems: r.problems}
	if value[0] != '[' {
		one.members[name] = slices.Concat(json.RawMessage("["), value, json.RawMessage("]"))
	}
	ids := list(one, maxTokenIDs, "token ids from 0", func(id int) bool { return id >= -1 && id <= maxVocab }, name)
	ids = slices.DeleteFunc(ids, func(id int) bool { return id < 0 })
	if len(ids) == 0 {
		return nil
	}
	return ids
}

func isNull(v json.RawMessage) bool { return string(v) == "null" }

// same compares two values as JSON reads them: numbers by value, everything else by its text.
func same(a, b json.RawMessage) bool {
	x, okX := parseNumber(a)
	y, okY := parseNumber(b)
	if okX && okY {
		return x == y
	}
	return bytes.Equal(compact(a), compact(b))
}

func compact(v json.RawMessage) []byte {
	var b bytes.Buffer
	if json.Compact(&b, v) != nil {
		return v
	}
	return b.Bytes()
}

// brief is a value's text for a message.
func brief(v json.RawMessage) string { return shorten(string(compact(v))) }

func shorten(s string) string {
	const most = 80
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "\ufffd")
}

// several lists a few of many names for a message.
func several(names []string) string {
	const most = 8
	quoted := make([]string, 0, most)
	for _, n := range names[:min(len(names), most)] {
		quoted = append(quoted, strconv.Quote(shorten(n)))
	}
	text := strings.Join(quoted, ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
