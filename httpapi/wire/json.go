package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// DecodeJSON reads a JSON body into a request struct of this package. Fields are matched by their exact names, unknown
// ones are ignored, null counts as absent, and absent ones keep the defaults of the wire. Errors match ErrMalformed and
// name the path of the field, as in "sampling_params.stop[2]: want a string, got a number".
func DecodeJSON(body []byte, into any) error {
	v := reflect.ValueOf(into)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return fmt.Errorf("decode request: want a pointer to a struct, got %T", into)
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return &malformed{what: "request", err: errors.New("body is empty; want a JSON object")}
	}
	if err := validJSON(body); err != nil {
		return &malformed{what: "request", err: err}
	}
	if err := decodeValue(body, v.Elem()); err != nil {
		return &malformed{what: "request", err: err}
	}
	return nil
}

// validJSON reports where a body stops being JSON; the parts of a valid body need no second look.
func validJSON(body []byte) error {
	var all json.RawMessage
	err := json.Unmarshal(body, &all)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("not valid JSON at byte %d: %w", syntax.Offset, err)
	}
	return err
}

// pathError is a cause with the path of the field it belongs to, outermost part first.
type pathError struct {
	path string // ".a", "[3]", ".a[3].b"
	err  error
}

func (e *pathError) Error() string { return strings.TrimPrefix(e.path, ".") + ": " + e.err.Error() }
func (e *pathError) Unwrap() error { return e.err }

// at puts one more part in front of the path of err.
func at(part string, err error) error {
	if err == nil {
		return nil
	}
	if inner, ok := err.(*pathError); ok { //nolint:errorlint // only an unwrapped one continues the path
		return &pathError{path: part + inner.path, err: inner.err}
	}
	return &pathError{path: part, err: err}
}

// defaulter sets the values that absent fields stand for; checker looks at a struct once its fields are in.
type (
	defaulter interface{ setDefaults() }
	checker   interface{ check() error }
)

// decodeValue reads one valid JSON value. v is addressable.
func decodeValue(raw []byte, v reflect.Value) error {
	raw = bytes.TrimSpace(raw)
	if u, ok := v.Addr().Interface().(json.Unmarshaler); ok {
		return u.UnmarshalJSON(raw)
	}
	if string(raw) == "null" {
		return nil
	}
	switch v.Kind() {
	case reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		if err := decodeValue(raw, p.Elem()); err != nil {
			return err
		}
		v.Set(p)
		return nil
	case reflect.Struct:
		return decodeStruct(raw, v)
	case reflect.Slice:
		return decodeSlice(raw, v)
	case reflect.Map:
		return decodeMap(raw, v)
	}
	if err := json.Unmarshal(raw, v.Addr().Interface()); err != nil {
		return scalarError(raw, v.Type())
	}
	return nil
}

func decodeStruct(raw []byte, v reflect.Value) error {
	if raw[0] != '{' {
		return wrongType("an object", raw)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return err
	}
	if d, ok := v.Addr().Interface().(defaulter); ok {
		d.setDefaults()
	}
	t := v.Type()
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		value, sent := fields[name]
		if t.Field(i).Tag.Get("wire") == "required" && (!sent || string(bytes.TrimSpace(value)) == "null") {
			return at("."+name, errors.New("missing"))
		}
		if !sent {
			continue
		}
		if err := decodeValue(value, v.Field(i)); err != nil {
			return at("."+name, err)
		}
	}
	if c, ok := v.Addr().Interface().(checker); ok {
		return c.check()
	}
	return nil
}

func decodeSlice(raw []byte, v reflect.Value) error {
	if raw[0] != '[' {
		return wrongType("a list", raw)
	}
	out := reflect.MakeSlice(v.Type(), 0, 0)
	dec := json.NewDecoder(bytes.NewReader(raw))
	if _, err := dec.Token(); err != nil {
		return err
	}
	for i := 0; dec.More(); i++ {
		var element json.RawMessage
		if err := dec.Decode(&element); err != nil {
			return err
		}
		e := reflect.New(v.Type().Elem()).Elem()
		if err := decodeElement(element, e); err != nil {
			return at("["+strconv.Itoa(i)+"]", err)
		}
		out = reflect.Append(out, e)
	}
	v.Set(out)
	return nil
}

func decodeMap(raw []byte, v reflect.Value) error {
	if raw[0] != '{' {
		return wrongType("an object", raw)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return err
	}
	out := reflect.MakeMapWithSize(v.Type(), len(fields))
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		e := reflect.New(v.Type().Elem()).Elem()
		if err := decodeElement(fields[name], e); err != nil {
			return at("["+strconv.Quote(name)+"]", err)
		}
		out.SetMapIndex(reflect.ValueOf(name), e)
	}
	v.Set(out)
	return nil
}

// decodeElement reads an element of a list or map, where null has no meaning unless the element holds any JSON.
func decodeElement(raw []byte, v reflect.Value) error {
	if _, any := v.Addr().Interface().(*json.RawMessage); !any && string(raw) == "null" {
		return scalarError(raw, v.Type())
	}
	return decodeValue(raw, v)
}

func scalarError(raw []byte, t reflect.Type) error {
	want := "a value of another type"
	switch t.Kind() {
	case reflect.String:
		want = "a string"
	case reflect.Bool:
		want = "true or false"
	case reflect.Int, reflect.Int32, reflect.Int64:
		want = fmt.Sprintf("an integer of %d bits", t.Bits())
	case reflect.Float32, reflect.Float64:
		want = "a number"
	case reflect.Struct, reflect.Map:
		want = "an object"
	case reflect.Slice:
		want = "a list"
	}
	return wrongType(want, raw)
}

func wrongType(want string, raw []byte) error {
	return fmt.Errorf("want %s, got %s", want, describe(raw))
}

// describe names a JSON value for an error; numbers are short enough to show.
func describe(raw []byte) string {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return "nothing"
	}
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f', 'n':
		return string(raw[:min(len(raw), 5)])
	}
	if len(raw) > 32 {
		return "a number of " + strconv.Itoa(len(raw)) + " characters"
	}
	return "the number " + string(raw)
}

// numberList reads a list of numbers from valid JSON without the detour over interfaces: prompts are long.
func numberList[T int32 | int64 | float32](raw []byte, want string, parse func(string) (T, error)) ([]T, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || raw[0] != '[' {
		return nil, wrongType("a list", raw)
	}
	rest := bytes.TrimSpace(raw[1 : len(raw)-1])
	if len(rest) == 0 {
		return []T{}, nil
	}
	out := make([]T, 0, bytes.Count(rest, []byte{','})+1)
	for i := 0; rest != nil; i++ {
		piece, after, more := bytes.Cut(rest, []byte{','})
		if rest = after; !more {
			rest = nil
		}
		x, err := parse(string(bytes.TrimSpace(piece)))
		if err != nil { // a piece cut out of a string or list begins as one, so its description is right
			return nil, at("["+strconv.Itoa(i)+"]", wrongType(want, piece))
		}
		out = append(out, x)
	}
	return out, nil
}

func parseInt32(s string) (int32, error) {
	v, err := strconv.ParseInt(s, 10, 32)
	return int32(v), err
}

func parseInt64(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) }

func parseFloat32(s string) (float32, error) {
	v, err := strconv.ParseFloat(s, 32)
	return float32(v), err
}
