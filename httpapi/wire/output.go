package wire

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ForwardBackwardOutput is the result of forward_backward.
type ForwardBackwardOutput struct {
	// Outputs has one entry per datum of the request, in its order; "logprobs" has the shape of the datum's targets.
	// All entries have the same names.
	Outputs []map[string]Tensor
	// Metrics are named "<name>:<reduction>"; the client requires "loss:sum".
	Metrics map[string]float64
}

// outputType is the class name that the client shows for an output.
const outputType = "ArrayRecord"

// reductions are how the client combines a metric over the chunks of one call; it drops metrics with any other.
var reductions = []string{"mean", "sum", "min", "max", "slack", "hash2", "unique"}

// CheckMetricName tells whether the client can combine a metric of this name.
func CheckMetricName(name string) error {
	if strings.Count(name, ":") != 1 {
		return fmt.Errorf("metric %q: want exactly one colon, as in loss:sum", name)
	}
	base, reduction, _ := strings.Cut(name, ":")
	if base == "" || !slices.Contains(reductions, reduction) {
		return fmt.Errorf("metric %q: want <name>:<reduction> with a reduction of %s", name, strings.Join(reductions, ", "))
	}
	return nil
}

// EncodeForwardBackwardOutput writes the protobuf result. Equal outputs give equal bytes.
func EncodeForwardBackwardOutput(out *ForwardBackwardOutput) ([]byte, error) {
	b := appendTextField(nil, 1, outputType)
	for from := 0; from < len(out.Outputs); {
		to := from + 1
		for to < len(out.Outputs) && sameRecord(out.Outputs[from], out.Outputs[to]) {
			to++
		}
		record, err := encodeRecord(out.Outputs[from:to], from)
		if err != nil {
			return nil, fmt.Errorf("encode forward_backward output: %w", err)
		}
		if !sameNames(out.Outputs[0], out.Outputs[from]) {
			return nil, fmt.Errorf("encode forward_backward output: datum %d has fields %v, datum 0 has %v",
				from, fieldNames(out.Outputs[from]), fieldNames(out.Outputs[0]))
		}
		b = appendBytesField(b, 2, record)
		from = to
	}
	if _, ok := out.Metrics["loss:sum"]; !ok {
		return nil, errors.New("encode forward_backward output: metric \"loss:sum\" is missing; the client requires it")
	}
	for _, name := range slices.Sorted(maps.Keys(out.Metrics)) {
		if err := CheckMetricName(name); err != nil {
			return nil, fmt.Errorf("encode forward_backward output: %w", err)
		}
		entry := appendBytesField(nil, 1, []byte(name))
		b = appendBytesField(b, 3, appendDoubleField(entry, 2, out.Metrics[name]))
	}
	return b, nil
}

func fieldNames(fields map[string]Tensor) []string { return slices.Sorted(maps.Keys(fields)) }

func sameNames(a, b map[string]Tensor) bool {
	return slices.Equal(fieldNames(a), fieldNames(b))
}

// sameRecord tells whether two datums can share an ArrayRecord: in each field the same dtype and trailing shape.
func sameRecord(a, b map[string]Tensor) bool {
	if len(a) != len(b) {
		return false
	}
	for name, x := range a {
		y, ok := b[name]
		if !ok || x.DType != y.DType || !slices.Equal(trailing(x.Shape), trailing(y.Shape)) {
			return false
		}
	}
	return true
}

// trailing is the shape without the leading dimension, which the client derives from the number of elements.
func trailing(shape []int) []int { return shape[min(1, len(shape)):] }

func encodeRecord(datums []map[string]Tensor, first int) ([]byte, error) {
	b := appendTextField(nil, 1, outputType)
	for _, name := range fieldNames(datums[0]) {
		var data, offsets []byte
		offsets = int64Bytes([]int64{0})
		for i, fields := range datums {
			t := fields[name]
			if err := t.check(); err != nil {
				return nil, fmt.Errorf("datum %d: %s: %w", first+i, name, err)
			}
			if t.CSR != nil || len(t.Shape) == 0 {
				return nil, fmt.Errorf("datum %d: %s: want a dense tensor with a leading dimension", first+i, name)
			}
			if t.DType == Int64 {
				data = append(data, int64Bytes(t.I64)...)
			} else {
				data = append(data, float32Bytes(t.F32)...)
			}
			offsets = append(offsets, int64Bytes([]int64{int64(len(data))})...)
		}
		batch := appendBytesField(nil, 1, data)
		batch = appendBytesField(batch, 2, offsets)
		batch = appendVarintField(batch, 3, int64(datums[0][name].DType))
		batch = appendPackedField(batch, 4, trailing(datums[0][name].Shape))
		entry := appendBytesField(nil, 1, []byte(name))
		b = appendBytesField(b, 2, appendBytesField(entry, 2, batch))
	}
	return appendVarintField(b, 3, int64(len(datums))), nil
}

// DecodeForwardBackwardOutput reads a result as the SDK does.
func DecodeForwardBackwardOutput(body []byte) (*ForwardBackwardOutput, error) {
	out := &ForwardBackwardOutput{Metrics: map[string]float64{}}
	err := eachField(body, func(f field) error {
		if f.num != 2 && f.num != 3 {
			return nil
		}
		msg, err := f.message()
		if err != nil {
			return err
		}
		if f.num == 2 {
			return named("loss_fn_outputs", out.decodeRecord(msg))
		}
		name, v, err := doubleEntry(msg)
		out.Metrics[name] = v
		return named("metrics", err)
	})
	if err != nil {
		return nil, &malformed{what: "forward_backward output", err: err}
	}
	return out, nil
}

func (out *ForwardBackwardOutput) decodeRecord(msg []byte) error {
	var datums int64
	batches := map[string]batchedTensor{}
	err := eachField(msg, func(f field) (err error) {
		switch f.num {
		case 2:
			var entry []byte
			if entry, err = f.message(); err != nil {
				return err
			}
			name, value, err := mapEntry(entry)
			if err != nil {
				return err
			}
			if entry, err = value.message(); err == nil {
				batches[name], err = decodeBatch(entry)
			}
			return named(fmt.Sprintf("fields[%q]", name), err)
		case 3:
			datums, err = f.varint()
			return named("num_datums", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	base := len(out.Outputs)
	if datums < 0 || datums > int64(MaxDatums-base) {
		return fmt.Errorf("num_datums %d is out of range", datums)
	}
	for range datums {
		out.Outputs = append(out.Outputs, map[string]Tensor{})
	}
	for name, batch := range batches {
		tensors, err := batch.split(int(datums))
		if err != nil {
			return fmt.Errorf("fields[%q]: %w", name, err)
		}
		for i, t := range tensors {
			out.Outputs[base+i][name] = t
		}
	}
	return nil
}

// batchedTensor is one field of several datums, concatenated along the leading dimension.
type batchedTensor struct {
	data     []byte
	offsets  []int64 // bytes into data, one more than there are datums
	dtype    DType
	trailing []int
}

func decodeBatch(msg []byte) (b batchedTensor, err error) {
	var shape []int64
	err = eachField(msg, func(f field) (err error) {
		switch f.num {
		case 1:
			b.data, err = f.message()
		case 2:
			var raw []byte
			raw, err = f.message()
			if len(raw)%8 != 0 {
				return errors.New("offsets: not a whole number of int64 values")
			}
			b.offsets = int64s(raw)
		case 3:
			var v int64
			v, err = f.varint()
			b.dtype = DType(int32(v))
		case 4:
			shape, err = f.appendInts(shape, MaxDims-1)
		}
		return err
	})
	for _, d := range shape {
		b.trailing = append(b.trailing, int(d))
	}
	return b, err
}

func (b batchedTensor) split(datums int) ([]Tensor, error) {
	info, ok := dtypes[b.dtype]
	if !ok {
		return nil, fmt.Errorf("%v is not known", b.dtype)
	}
	if len(b.offsets) != datums+1 {
		return nil, fmt.Errorf("%d offsets for %d datums", len(b.offsets), datums)
	}
	row, err := elements(b.trailing)
	if err != nil {
		return nil, err
	}
	tensors := make([]Tensor, datums)
	for i := range tensors {
		from, to := b.offsets[i], b.offsets[i+1]
		if from < 0 || to < from || to > int64(len(b.data)) {
			return nil, fmt.Errorf("datum %d spans bytes %d to %d of %d", i, from, to, len(b.data))
		}
		lead := 0
		if row > 0 {
			lead = int(to-from) / info.bytes / row
		}
		tensors[i].Shape = append([]int{lead}, b.trailing...)
		if err := tensors[i].setDense(b.dtype, b.data[from:to]); err != nil {
			return nil, fmt.Errorf("datum %d: %w", i, err)
		}
	}
	return tensors, nil
}
