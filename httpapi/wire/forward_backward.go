package wire

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// Bounds on a forward_backward request. Each datum and each tensor costs memory beyond its bytes, so an unbounded count
// of empty ones would multiply the size of the body. The SDK sends 1024 datums at most and under ten tensors each.
const (
	MaxDatums = 8192 // per request
	MaxInputs = 32   // tensors per datum
	MaxConfig = 256  // loss configuration entries
)

// ForwardBackwardRequest asks for the loss and, unless ForwardOnly, the gradient of a batch.
type ForwardBackwardRequest struct {
	ModelID     string
	SeqID       int64
	Data        []Datum
	LossFn      string
	Config      map[string]ConfigValue // newer encoding preferred where both are sent
	ForwardOnly bool
}

// ConfigValue is one value of a loss configuration.
type ConfigValue struct {
	Number float64
	Text   string
	IsText bool
}

// Datum is one training example.
type Datum struct {
	Tokens []int32           // all text chunks, one after another
	Chunks []ChunkKind       // what the input was made of; anything but Text has been refused
	Inputs map[string]Tensor // loss inputs by name, dense, Float32 or Int64
}

// ChunkKind is the kind of a piece of model input.
type ChunkKind uint8

// Kinds of model input.
const (
	UnknownChunk ChunkKind = iota
	TextChunk
	ImageChunk
	AssetPointerChunk
	DmelChunk // audio
)

var chunkNames = [...]string{"unknown", "encoded_text", "image", "image_asset_pointer", "dmel"}

func (k ChunkKind) String() string {
	if int(k) < len(chunkNames) {
		return chunkNames[k]
	}
	return chunkNames[UnknownChunk]
}

// DecodeForwardBackwardRequest reads the protobuf body of forward_backward. Errors match ErrMalformed and name the datum
// and the field. An input that is not text gives *UnsupportedChunkError, and then the request is returned beside the
// error, complete but for those chunks, so that its future can be failed under its own model and number.
func DecodeForwardBackwardRequest(body []byte) (*ForwardBackwardRequest, error) {
	d := requestDecoder{denseLeft: MaxDenseElements}
	if err := eachField(body, d.field); err != nil {
		return nil, &malformed{what: "forward_backward request", err: err}
	}
	req := &d.req
	for name, v := range d.config {
		if req.Config == nil {
			req.Config = make(map[string]ConfigValue, len(d.config))
		}
		if _, newer := req.Config[name]; !newer {
			req.Config[name] = ConfigValue{Number: v}
		}
	}
	var err error
	switch {
	case req.ModelID == "":
		err = errors.New("model_id: missing")
	case req.LossFn == "":
		err = errors.New("loss_fn: missing")
	case d.unsupported != nil:
		return req, &malformed{what: "forward_backward request", err: d.unsupported}
	}
	if err != nil {
		return nil, &malformed{what: "forward_backward request", err: err}
	}
	return req, nil
}

// requestDecoder holds what outlives one field.
type requestDecoder struct {
	req         ForwardBackwardRequest
	config      map[string]float64 // the older encoding
	denseLeft   int                // elements that sparse tensors may still expand to
	unsupported *UnsupportedChunkError
}

func (d *requestDecoder) field(f field) (err error) {
	switch f.num {
	case 1:
		d.req.ModelID, err = f.text()
		return named("model_id", err)
	case 2:
		d.req.SeqID, err = f.varint()
		return named("seq_id", err)
	case 3:
		i := len(d.req.Data)
		if i == MaxDatums {
			return fmt.Errorf("data: more than %d datums; send fewer per request", MaxDatums)
		}
		msg, err := f.message()
		if err == nil {
			err = d.datum(i, msg)
		}
		return named(fmt.Sprintf("datum %d", i), err)
	case 4:
		d.req.LossFn, err = f.text()
		return named("loss_fn", err)
	case 5:
		return named("loss_fn_config", d.configEntry(f))
	case 6:
		v, err := f.varint()
		d.req.ForwardOnly = v != 0
		return named("forward_only", err)
	case 7:
		return named("loss_fn_config_v2", d.configEntryV2(f))
	}
	return nil
}

func (d *requestDecoder) configEntry(f field) error {
	msg, err := f.message()
	if err != nil {
		return err
	}
	name, v, err := doubleEntry(msg)
	if err != nil {
		return err
	}
	if d.config == nil {
		d.config = map[string]float64{}
	}
	if d.config[name] = v; len(d.config) > MaxConfig {
		return fmt.Errorf("more than %d entries", MaxConfig)
	}
	return nil
}

func (d *requestDecoder) configEntryV2(f field) error {
	msg, err := f.message()
	if err != nil {
		return err
	}
	name, entry, err := mapEntry(msg)
	if err != nil {
		return err
	}
	msg, err = entry.message()
	if err != nil {
		return fmt.Errorf("[%q]: %w", name, err)
	}
	var v ConfigValue
	set := false
	err = eachField(msg, func(f field) (err error) {
		switch f.num {
		case 1:
			v = ConfigValue{}
			v.Number, err = f.double()
			set = true
		case 2:
			v = ConfigValue{IsText: true}
			v.Text, err = f.text()
			set = true
		}
		return err
	})
	if err == nil && !set {
		err = errors.New("holds neither a number nor a text")
	}
	if err != nil {
		return fmt.Errorf("[%q]: %w", name, err)
	}
	if d.req.Config == nil {
		d.req.Config = map[string]ConfigValue{}
	}
	if d.req.Config[name] = v; len(d.req.Config) > MaxConfig {
		return fmt.Errorf("more than %d entries", MaxConfig)
	}
	return nil
}

func (d *requestDecoder) datum(index int, msg []byte) error {
	var datum Datum
	err := eachField(msg, func(f field) error {
		switch f.num {
		case 1:
			i := len(datum.Chunks)
			chunk, err := f.message()
			if err == nil {
				err = d.chunk(&datum, index, chunk)
			}
			return named(fmt.Sprintf("model_input[%d]", i), err)
		case 2:
			entry, err := f.message()
			if err != nil {
				return named("loss_fn_inputs", err)
			}
			name, value, err := mapEntry(entry)
			if err == nil {
				err = d.input(&datum, name, value)
			}
			return named(fmt.Sprintf("loss_fn_inputs[%q]", name), err)
		}
		return nil // spans (3, 4) serve a loss that needs recorded samples; nothing here uses them
	})
	d.req.Data = append(d.req.Data, datum)
	return err
}

// chunk appends a Chunk message to a datum; of several alternatives in one message the last counts.
func (d *requestDecoder) chunk(datum *Datum, index int, msg []byte) error {
	kind := UnknownChunk
	var tokens []byte
	err := eachField(msg, func(f field) error {
		if f.num < 1 || f.num > 3 {
			return nil
		}
		kind = [...]ChunkKind{TextChunk, ImageChunk, DmelChunk}[f.num-1]
		chunk, err := f.message()
		if err != nil || kind != TextChunk {
			return named(kind.String(), err)
		}
		return named("encoded_text", eachField(chunk, func(f field) (err error) {
			if f.num == 1 {
				tokens, err = f.message()
			}
			return named("tokens", err)
		}))
	})
	if err != nil {
		return err
	}
	datum.Chunks = append(datum.Chunks, kind)
	if kind != TextChunk {
		if d.unsupported == nil {
			d.unsupported = &UnsupportedChunkError{Datum: index, Chunk: len(datum.Chunks) - 1, Kind: kind.String()}
		}
		return nil
	}
	if len(tokens)%4 != 0 {
		return fmt.Errorf("encoded_text: tokens: %d bytes are not a whole number of int32 values", len(tokens))
	}
	datum.Tokens = appendInt32s(datum.Tokens, tokens)
	return nil
}

func (d *requestDecoder) input(datum *Datum, name string, value field) error {
	msg, err := value.message()
	if err != nil {
		return err
	}
	t, err := decodeTensor(msg)
	if err != nil {
		return err
	}
	if t.CSR != nil {
		if t, err = t.Dense(d.denseLeft); err != nil {
			return err
		}
		d.denseLeft -= t.Len()
	}
	if datum.Inputs == nil {
		datum.Inputs = map[string]Tensor{}
	}
	if datum.Inputs[name] = t; len(datum.Inputs) > MaxInputs {
		return fmt.Errorf("datum has more than %d inputs", MaxInputs)
	}
	return nil
}

// EncodeForwardBackwardRequest writes a request with sorted maps and one text chunk per datum, so requests that mean the
// same give the same bytes whatever order, chunking or layout they arrived in.
func EncodeForwardBackwardRequest(r *ForwardBackwardRequest) ([]byte, error) {
	if r.SeqID < math.MinInt32 || r.SeqID > math.MaxInt32 {
		return nil, fmt.Errorf("encode forward_backward request: seq_id %d does not fit the schema's int32", r.SeqID)
	}
	b := appendTextField(nil, 1, r.ModelID)
	b = appendVarintField(b, 2, r.SeqID)
	for i, datum := range r.Data {
		msg, err := encodeDatum(datum)
		if err != nil {
			return nil, fmt.Errorf("encode forward_backward request: datum %d: %w", i, err)
		}
		b = appendBytesField(b, 3, msg)
	}
	b = appendTextField(b, 4, r.LossFn)
	names := slices.Sorted(maps.Keys(r.Config))
	for _, name := range names {
		if v := r.Config[name]; !v.IsText {
			entry := appendBytesField(nil, 1, []byte(name))
			b = appendBytesField(b, 5, appendDoubleField(entry, 2, v.Number))
		}
	}
	if r.ForwardOnly {
		b = appendVarintField(b, 6, 1)
	}
	for _, name := range names {
		var value []byte
		if v := r.Config[name]; v.IsText {
			value = protowire.AppendString(protowire.AppendTag(nil, 2, protowire.BytesType), v.Text)
		} else {
			value = appendDoubleField(nil, 1, v.Number)
		}
		entry := appendBytesField(nil, 1, []byte(name))
		b = appendBytesField(b, 7, appendBytesField(entry, 2, value))
	}
	return b, nil
}

func encodeDatum(d Datum) ([]byte, error) {
	for i, kind := range d.Chunks {
		if kind != TextChunk {
			return nil, fmt.Errorf("model_input[%d]: chunk kind %q is not supported", i, kind)
		}
	}
	var b []byte
	if len(d.Tokens) > 0 {
		text := appendBytesField(nil, 1, int32Bytes(d.Tokens))
		b = appendBytesField(b, 1, appendBytesField(nil, 1, text))
	}
	for _, name := range slices.Sorted(maps.Keys(d.Inputs)) {
		t := d.Inputs[name]
		if err := t.check(); err != nil {
			return nil, fmt.Errorf("loss_fn_inputs[%q]: %w", name, err)
		}
		entry := appendBytesField(nil, 1, []byte(name))
		b = appendBytesField(b, 2, appendBytesField(entry, 2, appendTensor(nil, t)))
	}
	return b, nil
}
