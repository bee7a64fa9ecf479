package export

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

var errJSON = errors.New("malformed JSON")

// member is where a member of a JSON object stands in the text.
type member struct {
	name       string
	start, end int // of the value
}

// membersOf finds the members of the object that text is, in their order, and where its first one could stand.
func membersOf(text []byte) (list []member, inside int, err error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, 0, fmt.Errorf("%w: not an object", errJSON)
	}
	inside = int(dec.InputOffset())
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, 0, fmt.Errorf("%w: %w", errJSON, err)
		}
		name, _ := t.(string) // a member's name is always a string
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, 0, fmt.Errorf("%w: field %q: %w", errJSON, shorten(name), err)
		}
		if seen[name] {
			return nil, 0, fmt.Errorf("%w: field %q appears twice", errJSON, shorten(name))
		}
		seen[name] = true
		end := int(dec.InputOffset())
		list = append(list, member{name, end - len(value), end})
	}
	if _, err := dec.Token(); err != nil {
		return nil, 0, fmt.Errorf("%w: the object is not closed", errJSON)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, 0, fmt.Errorf("%w: text follows the object", errJSON)
	}
	return list, inside, nil
}

// setField sets a field, which is known by several names, of an object and of its text_config, and leaves every other byte
// alone. Where the object has it under none of the names and insert is set, it comes first, under the first name.
func setField(text []byte, value string, insert bool, names ...string) ([]byte, error) {
	list, inside, err := membersOf(text)
	if err != nil {
		return nil, err
	}
	var out []byte
	done, found := 0, false
	for _, m := range list {
		is := false
		for _, name := range names {
			is = is || m.name == name
		}
		part := []byte(value)
		switch {
		case is:
			found = true
		case m.name == "text_config" && text[m.start] == '{':
			if part, err = setField(text[m.start:m.end], value, false, names...); err != nil {
				return nil, err
			}
		default:
			continue
		}
		out = append(append(out, text[done:m.start]...), part...)
		done = m.end
	}
	out = append(out, text[done:]...)
	if found || !insert {
		return out, nil
	}
	// The new member takes the blanks before the first one, so that it is laid out like the others.
	blanks := text[inside : inside+len(text[inside:])-len(bytes.TrimLeft(text[inside:], " \t\r\n"))]
	field := fmt.Sprintf("%s%q: %s", blanks, names[0], value)
	if len(list) > 0 {
		field += ","
	}
	return append(append(append([]byte(nil), out[:inside]...), field...), out[inside:]...), nil
}
