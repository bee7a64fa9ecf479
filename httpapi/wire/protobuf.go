package wire

import (
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// field is one field of a protobuf message: a number, a wire type and the payload of that type.
type field struct {
	num   protowire.Number
	typ   protowire.Type
	bits  uint64 // VarintType, Fixed32Type, Fixed64Type
	bytes []byte // BytesType; aliases the message
}

// eachField calls visit for every field of a message in order, groups and all. Unknown numbers are visit's to ignore.
func eachField(msg []byte, visit func(field) error) error {
	for len(msg) > 0 {
		num, typ, n := protowire.ConsumeTag(msg)
		if n < 0 {
			return fmt.Errorf("field tag: %w", protowire.ParseError(n))
		}
		f := field{num: num, typ: typ}
		msg = msg[n:]
		switch typ {
		case protowire.VarintType:
			f.bits, n = protowire.ConsumeVarint(msg)
		case protowire.Fixed32Type:
			var v uint32
			v, n = protowire.ConsumeFixed32(msg)
			f.bits = uint64(v)
		case protowire.Fixed64Type:
			f.bits, n = protowire.ConsumeFixed64(msg)
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(msg)
		default:
			n = protowire.ConsumeFieldValue(num, typ, msg)
		}
		if n < 0 {
			return fmt.Errorf("field %d: %w", num, protowire.ParseError(n))
		}
		msg = msg[n:]
		if err := visit(f); err != nil {
			return err
		}
	}
	return nil
}

var wireTypeNames = map[protowire.Type]string{
	protowire.VarintType: "varint", protowire.Fixed32Type: "fixed32", protowire.Fixed64Type: "fixed64",
	protowire.BytesType: "length-delimited", protowire.StartGroupType: "group", protowire.EndGroupType: "end of group",
}

func (f field) want(typ protowire.Type) error {
	if f.typ != typ {
		return fmt.Errorf("want a %s value, got %s", wireTypeNames[typ], wireTypeNames[f.typ])
	}
	return nil
}

func (f field) message() ([]byte, error) { return f.bytes, f.want(protowire.BytesType) }

func (f field) text() (string, error) {
	if err := f.want(protowire.BytesType); err != nil {
		return "", err
	}
	if !utf8.Valid(f.bytes) {
		return "", errors.New("not valid UTF-8")
	}
	return string(f.bytes), nil
}

func (f field) varint() (int64, error) { return int64(f.bits), f.want(protowire.VarintType) }

func (f field) double() (float64, error) {
	return math.Float64frombits(f.bits), f.want(protowire.Fixed64Type)
}

// appendInts appends a repeated integer field, packed or not, refusing more than limit elements in all.
func (f field) appendInts(into []int64, limit int) ([]int64, error) {
	if f.typ == protowire.VarintType {
		into = append(into, int64(f.bits))
	} else {
		if err := f.want(protowire.BytesType); err != nil {
			return nil, err
		}
		for rest := f.bytes; len(rest) > 0 && len(into) <= limit; {
			v, n := protowire.ConsumeVarint(rest)
			if n < 0 {
				return nil, protowire.ParseError(n)
			}
			into, rest = append(into, int64(v)), rest[n:]
		}
	}
	if len(into) > limit {
		return nil, fmt.Errorf("more than %d elements", limit)
	}
	return into, nil
}

// mapEntry splits an entry of a map with string keys. A missing value is an empty field of number 2.
func mapEntry(msg []byte) (key string, value field, err error) {
	value = field{num: 2, typ: protowire.BytesType}
	seen := false
	err = eachField(msg, func(f field) error {
		switch f.num {
		case 1:
			key, err = f.text()
			if err != nil {
				return fmt.Errorf("key: %w", err)
			}
		case 2:
			value, seen = f, true
		}
		return nil
	})
	if err == nil && !seen {
		value.num = 0 // tells a map of scalars that the default was left out
	}
	return key, value, err
}

// doubleEntry reads an entry of map<string,double>.
func doubleEntry(msg []byte) (string, float64, error) {
	key, value, err := mapEntry(msg)
	if err != nil || value.num == 0 {
		return key, 0, err
	}
	v, err := value.double()
	if err != nil {
		return key, 0, fmt.Errorf("[%q]: %w", key, err)
	}
	return key, v, nil
}

// Writers. Values equal to the proto3 default are left out, as every official writer does.

func appendBytesField(b []byte, num protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), v)
}

func appendTextField(b []byte, num protowire.Number, v string) []byte {
	if v == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), v)
}

func appendVarintField(b []byte, num protowire.Number, v int64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), uint64(v))
}

func appendDoubleField(b []byte, num protowire.Number, v float64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, num, protowire.Fixed64Type), math.Float64bits(v))
}

func appendPackedField(b []byte, num protowire.Number, v []int) []byte {
	if len(v) == 0 {
		return b
	}
	var packed []byte
	for _, x := range v {
		packed = protowire.AppendVarint(packed, uint64(int64(x)))
	}
	return appendBytesField(b, num, packed)
}
