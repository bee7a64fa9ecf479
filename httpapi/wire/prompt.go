package wire

import (
	"encoding/json"
	"errors"
	"strconv"
)

// Prompt is the model input of a JSON request: the tokens of its text chunks, one after another.
type Prompt struct {
	Tokens []int32
	Chunks int // number of text chunks they came in
}

// UnmarshalJSON concatenates text chunks and refuses any other kind with *UnsupportedChunkError.
func (p *Prompt) UnmarshalJSON(raw []byte) error {
	var body struct {
		Chunks []json.RawMessage `json:"chunks"`
	}
	if string(raw) == "null" {
		return errors.New("missing")
	}
	if err := json.Unmarshal(raw, &body); err != nil {
		if raw[0] != '{' {
			return wrongType("an object with chunks", raw)
		}
		return at(".chunks", errors.New("want a list of objects"))
	}
	if body.Chunks == nil {
		return at(".chunks", errors.New("missing"))
	}
	*p = Prompt{Tokens: []int32{}, Chunks: len(body.Chunks)}
	for i, chunk := range body.Chunks {
		tokens, err := textChunk(chunk)
		var unsupported *UnsupportedChunkError
		if errors.As(err, &unsupported) {
			unsupported.Chunk = i
		}
		if err != nil {
			return at(".chunks["+strconv.Itoa(i)+"]", err)
		}
		p.Tokens = append(p.Tokens, tokens...)
	}
	return nil
}

func textChunk(raw []byte) ([]int32, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil || fields == nil {
		return nil, wrongType("an object", raw)
	}
	var kind string
	if value, sent := fields["type"]; !sent {
		return nil, at(".type", errors.New("missing"))
	} else if err := json.Unmarshal(value, &kind); err != nil || kind == "" {
		return nil, at(".type", wrongType("the name of a chunk kind", value))
	}
	if kind != TextChunk.String() {
		return nil, &UnsupportedChunkError{Datum: -1, Kind: clip(kind)}
	}
	value, sent := fields["tokens"]
	if !sent {
		return nil, at(".tokens", errors.New("missing"))
	}
	tokens, err := numberList(value, "a token id", parseInt32)
	return tokens, at(".tokens", err)
}

// MarshalJSON writes all tokens as one text chunk.
func (p Prompt) MarshalJSON() ([]byte, error) {
	type chunk struct {
		Tokens List[int32] `json:"tokens"`
		Type   string      `json:"type"`
	}
	return json.Marshal(struct {
		Chunks []chunk `json:"chunks"`
	}{[]chunk{{p.Tokens, TextChunk.String()}}})
}

// StopKind says which of its forms a StopSpec was sent in.
type StopKind uint8

// Forms of stop. Absent and empty are opposites: the first stops at the model's end tokens, the second at nothing.
const (
	StopAtEnd     StopKind = iota // absent or null
	StopAtNothing                 // []
	StopAtStrings                 // a string or a list of strings, and the end tokens
	StopAtTokens                  // a list of token ids, and the end tokens
)

// StopSpec says where sampling stops.
type StopSpec struct {
	Kind    StopKind
	Strings []string
	Tokens  []int32
}

// UnmarshalJSON reads the four forms; a list that mixes strings and ids is refused.
func (s *StopSpec) UnmarshalJSON(raw []byte) error {
	*s = StopSpec{}
	switch raw[0] {
	case 'n':
		return nil
	case '"':
		var text string
		if err := json.Unmarshal(raw, &text); err != nil {
			return err
		}
		if text == "" {
			return errors.New("want a string that is not empty")
		}
		s.Kind, s.Strings = StopAtStrings, []string{text}
		return nil
	case '[':
	default:
		return wrongType("a string, a list of strings or a list of token ids", raw)
	}
	var elements []json.RawMessage
	if err := json.Unmarshal(raw, &elements); err != nil {
		return err
	}
	if len(elements) == 0 {
		s.Kind = StopAtNothing
		return nil
	}
	s.Kind = StopAtTokens
	if elements[0][0] == '"' {
		s.Kind = StopAtStrings
	}
	for i, element := range elements {
		if err := s.add(element); err != nil {
			return at("["+strconv.Itoa(i)+"]", err)
		}
	}
	return nil
}

func (s *StopSpec) add(element []byte) error {
	if s.Kind == StopAtTokens {
		id, err := parseInt32(string(element))
		if err != nil || id < 0 {
			return wrongType("a token id (all elements must be ids, or all strings)", element)
		}
		s.Tokens = append(s.Tokens, id)
		return nil
	}
	var text string
	if element[0] != '"' || json.Unmarshal(element, &text) != nil {
		return wrongType("a string (all elements must be strings, or all token ids)", element)
	}
	if text == "" {
		return errors.New("want a string that is not empty")
	}
	s.Strings = append(s.Strings, text)
	return nil
}

// MarshalJSON writes the list form; an absent stop is null, or left out with omitzero.
func (s StopSpec) MarshalJSON() ([]byte, error) {
	switch s.Kind {
	case StopAtNothing:
		return []byte("[]"), nil
	case StopAtStrings:
		return json.Marshal(s.Strings)
	case StopAtTokens:
		return json.Marshal(s.Tokens)
	}
	return []byte("null"), nil
}

// UnmarshalJSON reads the JSON form of a tensor and keeps its layout.
func (t *Tensor) UnmarshalJSON(raw []byte) error {
	var body tensorJSON
	if err := json.Unmarshal(raw, &body); err != nil {
		return wrongType("a tensor: an object with data, dtype and shape", raw)
	}
	*t = Tensor{}
	var err error
	switch body.DType {
	case "int64":
		t.DType = Int64
		t.I64, err = numberList(body.Data, "an integer of 64 bits", parseInt64)
	case "float32":
		t.DType = Float32
		t.F32, err = numberList(body.Data, "a number", parseFloat32)
	default:
		return at(".dtype", errors.New("want int64 or float32, got "+strconv.Quote(clip(body.DType))))
	}
	if err != nil {
		return at(".data", err)
	}
	t.Shape = body.Shape
	if body.Crow != nil || body.Col != nil {
		t.CSR = &CSR{}
		if t.CSR.Crow, err = numberList(body.Crow, "an integer of 64 bits", parseInt64); err != nil {
			return at(".sparse_crow_indices", err)
		}
		if t.CSR.Col, err = numberList(body.Col, "an integer of 64 bits", parseInt64); err != nil {
			return at(".sparse_col_indices", err)
		}
	} else if t.Shape == nil {
		t.Shape = []int{t.Len()}
	}
	return t.check()
}

type tensorJSON struct {
	Data  json.RawMessage `json:"data"`
	DType string          `json:"dtype"`
	Shape []int           `json:"shape,omitempty"`
	Crow  json.RawMessage `json:"sparse_crow_indices,omitempty"`
	Col   json.RawMessage `json:"sparse_col_indices,omitempty"`
}

// MarshalJSON writes the JSON form of a tensor.
func (t Tensor) MarshalJSON() ([]byte, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	body := tensorJSON{DType: t.DType.String(), Shape: t.Shape}
	var err error
	if t.DType == Int64 {
		body.Data, err = json.Marshal(List[int64](t.I64))
	} else {
		body.Data, err = json.Marshal(List[float32](t.F32))
	}
	if err == nil && t.CSR != nil {
		if body.Crow, err = json.Marshal(List[int64](t.CSR.Crow)); err == nil {
			body.Col, err = json.Marshal(List[int64](t.CSR.Col))
		}
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(body)
}
