package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"
)

// List is a list that is never null in JSON: the client refuses null for a list.
type List[T any] []T

// MarshalJSON writes [] for a nil list.
func (l List[T]) MarshalJSON() ([]byte, error) {
	if l == nil {
		return []byte("[]"), nil
	}
	return json.Marshal([]T(l))
}

// Dict is a map that is never null in JSON.
type Dict[T any] map[string]T

// MarshalJSON writes {} for a nil map.
func (d Dict[T]) MarshalJSON() ([]byte, error) {
	if d == nil {
		return []byte("{}"), nil
	}
	return json.Marshal(map[string]T(d))
}

// FiniteMetrics are numbers by name for the JSON routes, whose readers fail on NaN, on infinities and on null alike:
// non-finite values are left out when written.
type FiniteMetrics map[string]float64

// MarshalJSON leaves non-finite values out.
func (m FiniteMetrics) MarshalJSON() ([]byte, error) {
	finite := make(map[string]float64, len(m))
	for name, v := range m {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			finite[name] = v
		}
	}
	return json.Marshal(finite)
}

// Dropped lists the names that MarshalJSON leaves out, so that the caller can say so.
func (m FiniteMetrics) Dropped() []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if v := m[name]; math.IsNaN(v) || math.IsInf(v, 0) {
			names = append(names, name)
		}
	}
	return names
}

// Time is a moment as the wire writes it: ISO-8601 in UTC with a Z. The client fails on times without a zone.
type Time struct{ time.Time }

// MarshalJSON writes UTC with at most microseconds, which is what the client keeps.
func (t Time) MarshalJSON() ([]byte, error) {
	return []byte(t.UTC().Format(`"2006-01-02T15:04:05.999999Z"`)), nil
}

// UnmarshalJSON reads ISO-8601 with any zone; null leaves the zero time.
func (t *Time) UnmarshalJSON(raw []byte) error {
	if string(raw) == "null" {
		return nil
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return wrongType("a time as a string", raw)
	}
	v, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return fmt.Errorf("want a time with a zone such as 2026-01-02T03:04:05Z, got %q", text)
	}
	t.Time = v.UTC()
	return nil
}

// Nullable is a field where absent and null differ.
type Nullable[T any] struct {
	Present bool
	Null    bool
	Value   T
}

// UnmarshalJSON notes that the field was sent.
func (n *Nullable[T]) UnmarshalJSON(raw []byte) error {
	*n = Nullable[T]{Present: true}
	if string(raw) == "null" {
		n.Null = true
		return nil
	}
	if err := json.Unmarshal(raw, &n.Value); err != nil {
		return fmt.Errorf("want %s or null, got %s", wanted(n.Value), describe(raw))
	}
	return nil
}

// MarshalJSON writes null for an absent field too; leave the field out with omitzero.
func (n Nullable[T]) MarshalJSON() ([]byte, error) {
	if n.Null || !n.Present {
		return []byte("null"), nil
	}
	return json.Marshal(n.Value)
}

func wanted(v any) string {
	switch v.(type) {
	case int64:
		return "an integer"
	case string:
		return "a string"
	}
	return fmt.Sprintf("%T", v)
}

// Seed is a random seed. Clients may send anything from the smallest int64 to the largest uint64; the bits are kept.
type Seed int64

// UnmarshalJSON reads signed and unsigned 64-bit integers.
func (s *Seed) UnmarshalJSON(raw []byte) error {
	if v, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		*s = Seed(v)
		return nil
	}
	v, err := strconv.ParseUint(string(raw), 10, 64)
	if err != nil {
		return wrongType("an integer of 64 bits", raw)
	}
	*s = Seed(v)
	return nil
}

// Metadata is what a user attaches to things. Requests may carry any JSON as a value; answers must be strings, so
// other values are kept as their JSON text.
type Metadata map[string]string

// UnmarshalJSON turns values into strings.
func (m *Metadata) UnmarshalJSON(raw []byte) error {
	if string(raw) == "null" {
		return nil
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal(raw, &values); err != nil {
		return wrongType("an object", raw)
	}
	*m = make(Metadata, len(values))
	for name, value := range values {
		var text string
		if value[0] == '"' {
			if err := json.Unmarshal(value, &text); err != nil {
				return at("["+strconv.Quote(name)+"]", err)
			}
		} else {
			var compact bytes.Buffer
			if err := json.Compact(&compact, value); err != nil {
				return at("["+strconv.Quote(name)+"]", err)
			}
			text = compact.String()
		}
		(*m)[name] = text
	}
	return nil
}

// Const is the "type" field of an answer: it always writes the name of its kind and reads anything.
type Const[T interface{ kind() string }] struct{}

// MarshalJSON writes the kind.
func (Const[T]) MarshalJSON() ([]byte, error) {
	var t T
	return json.Marshal(t.kind())
}

// UnmarshalJSON accepts any value: the route, not the field, decides what a body is.
func (Const[T]) UnmarshalJSON([]byte) error { return nil }
