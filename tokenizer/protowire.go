package tokenizer

import (
	"encoding/binary"
	"fmt"
	"math"
)

// protoField is one field of a message in protobuf's wire format.
type protoField struct {
	number  int
	kind    int    // the wire type
	varint  uint64 // of kinds protoVarint, protoFixed32, protoFixed64
	payload []byte // of kind protoBytes
}

const (
	protoVarint  = 0
	protoFixed64 = 1
	protoBytes   = 2
	protoFixed32 = 5
)

func (f protoField) float() float32 { return math.Float32frombits(uint32(f.varint)) }

// eachField calls take for every field of a message, in order; nothing is copied. It stops at the first error.
func eachField(data []byte, take func(f protoField) error) error {
	next := func() (uint64, error) {
		v, n := binary.Uvarint(data)
		if n <= 0 {
			return 0, fmt.Errorf("a number is cut off or too long")
		}
		data = data[n:]
		return v, nil
	}
	for len(data) > 0 {
		tag, err := next()
		if err != nil {
			return err
		}
		if tag>>3 == 0 || tag>>3 >= 1<<29 {
			return fmt.Errorf("field number %d", tag>>3)
		}
		f := protoField{number: int(tag >> 3), kind: int(tag & 7)}
		size := uint64(0)
		switch f.kind {
		case protoVarint:
			if f.varint, err = next(); err != nil {
				return err
			}
		case protoBytes:
			if size, err = next(); err != nil {
				return err
			}
		case protoFixed32:
			size = 4
		case protoFixed64:
			size = 8
		default:
			return fmt.Errorf("wire type %d", f.kind)
		}
		if size > uint64(len(data)) {
			return fmt.Errorf("field %d has %d bytes of %d", f.number, len(data), size)
		}
		f.payload, data = data[:size], data[size:]
		switch f.kind {
		case protoFixed32:
			f.varint = uint64(binary.LittleEndian.Uint32(f.payload))
		case protoFixed64:
			f.varint = binary.LittleEndian.Uint64(f.payload)
		}
		if err := take(f); err != nil {
			return err
		}
	}
	return nil
}

// known checks that a field has the wire type that it must have.
func (f protoField) known(kind int) error {
	if f.kind != kind {
		return fmt.Errorf("field %d has wire type %d, want %d", f.number, f.kind, kind)
	}
	return nil
}
