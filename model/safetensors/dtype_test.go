package safetensors

import (
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"
)

// Every half-precision pattern against its definition in the IEEE format: sign, 5 bits of exponent, 10 of fraction.
func TestFloat32sHalfExact(t *testing.T) {
	src := make([]byte, 2<<16)
	for i := range 1 << 16 {
		binary.LittleEndian.PutUint16(src[2*i:], uint16(i))
	}
	f16, bf16 := make([]float32, 1<<16), make([]float32, 1<<16)
	if err := errors.Join(Float32s(f16, F16, src), Float32s(bf16, BF16, src)); err != nil {
		t.Fatal(err)
	}
	for i := range 1 << 16 {
		sign := 1.0
		if i>>15 == 1 {
			sign = -1
		}
		check := func(kind string, got float32, exponent, bias, fraction, width int) {
			var want float64
			switch {
			case exponent == 2*bias+1 && fraction != 0:
				if got == got {
					t.Errorf("%s %#04x = %v, want NaN", kind, i, got)
				}
				return
			case exponent == 2*bias+1:
				want = math.Inf(int(sign))
			case exponent == 0:
				want = sign * math.Ldexp(float64(fraction), 1-bias-width)
			default:
				want = sign * math.Ldexp(float64(fraction|1<<width), exponent-bias-width)
			}
			if float64(got) != want || math.Signbit(float64(got)) != (sign < 0) {
				t.Errorf("%s %#04x = %v, want %v", kind, i, got, want)
			}
		}
		check("f16", f16[i], i>>10&31, 15, i&1023, 10)
		check("bf16", bf16[i], i>>7&255, 127, i&127, 7)
	}
	back := make([]byte, len(src))
	for dtype, values := range map[DType][]float32{F16: f16, BF16: bf16} {
		if err := PutFloat32s(back, dtype, values); err != nil {
			t.Fatal(err)
		}
		for i, v := range values {
			if got := binary.LittleEndian.Uint16(back[2*i:]); v == v && int(got) != i {
				t.Errorf("%s %#04x came back as %#04x", dtype, i, got)
			}
		}
	}
}

func TestPutFloat32sRounds(t *testing.T) {
	nan := math.Float32frombits(0x7f800001) // its upper half alone would read as infinity
	tests := []struct {
		dtype DType
		value float32
		bits  uint16
	}{
		{BF16, 1 + 1.0/256, 0x3f80}, // tie to even, down
		{BF16, 1 + 3.0/256, 0x3f82}, // tie to even, up
		{BF16, math.MaxFloat32, 0x7f80},
		{F16, 1 + 1.0/2048, 0x3c00},
		{F16, 1 + 3.0/2048, 0x3c02},
		{F16, 65520, 0x7c00},
	}
	for _, tt := range tests {
		var b [2]byte
		if err := PutFloat32s(b[:], tt.dtype, []float32{tt.value}); err != nil {
			t.Fatal(err)
		}
		if got := binary.LittleEndian.Uint16(b[:]); got != tt.bits {
			t.Errorf("%s of %v = %#04x, want %#04x", tt.dtype, tt.value, got, tt.bits)
		}
	}
	for _, dtype := range []DType{F16, BF16, F32} {
		b := make([]byte, dtype.Size())
		var v [1]float32
		if err := errors.Join(PutFloat32s(b, dtype, []float32{nan}), Float32s(v[:], dtype, b)); err != nil || v[0] == v[0] {
			t.Errorf("%s: NaN came back as %v, %v", dtype, v[0], err)
		}
	}
	if err := PutFloat32s(make([]byte, 8), I64, []float32{1}); !errors.Is(err, ErrDType) {
		t.Errorf("I64: %v", err)
	}
	if err := PutFloat32s(make([]byte, 3), F32, []float32{1}); !errors.Is(err, ErrLength) {
		t.Errorf("short: %v", err)
	}
}

func TestFloat32sIsExactOrRefuses(t *testing.T) {
	le := binary.LittleEndian
	tests := []struct {
		name  string
		dtype DType
		src   []byte
		want  float32
		ok    bool
	}{
		{"f64", F64, le.AppendUint64(nil, math.Float64bits(-0.375)), -0.375, true},
		{"f64 inf", F64, le.AppendUint64(nil, math.Float64bits(math.Inf(-1))), float32(math.Inf(-1)), true},
		{"f64 inexact", F64, le.AppendUint64(nil, math.Float64bits(0.1)), 0, false},
		{"f64 overflow", F64, le.AppendUint64(nil, math.Float64bits(1e300)), 0, false},
		{"i64", I64, le.AppendUint64(nil, uint64(1<<24)), 1 << 24, true},
		{"i64 least", I64, le.AppendUint64(nil, 1<<63), -1 << 63, true},
		{"i64 inexact", I64, le.AppendUint64(nil, 1<<24+1), 0, false},
		{"i64 greatest", I64, le.AppendUint64(nil, 1<<63-1), 0, false},
		{"u64 above int64", U64, le.AppendUint64(nil, 1<<63), 0, false},
		{"i32", I32, le.AppendUint32(nil, 0xffffffff), -1, true},
		{"i32 greatest", I32, le.AppendUint32(nil, 1<<31-1), 0, false},
		{"u32", U32, le.AppendUint32(nil, 1<<31), 1 << 31, true},
		{"i16", I16, []byte{0, 0x80}, -32768, true},
		{"u16", U16, []byte{0xff, 0xff}, 65535, true},
		{"i8", I8, []byte{0x80}, -128, true},
		{"u8", U8, []byte{0x80}, 128, true},
		{"bool", Bool, []byte{1}, 1, true},
		{"bool 2", Bool, []byte{2}, 0, false},
		{"f8", F8E4M3, []byte{0}, 0, false},
		{"unknown", "F4", []byte{0}, 0, false},
		{"no type", "", nil, 0, false},
	}
	for _, tt := range tests {
		var got [1]float32
		err := Float32s(got[:], tt.dtype, tt.src)
		switch {
		case tt.ok && (err != nil || got[0] != tt.want):
			t.Errorf("%s = %v, %v; want %v", tt.name, got[0], err, tt.want)
		case !tt.ok && (!errors.Is(err, ErrDType) || !strings.Contains(err.Error(), string(tt.dtype))):
			t.Errorf("%s: error %v, want the type named", tt.name, err)
		}
	}
	if err := Float32s(make([]float32, 2), F32, make([]byte, 7)); !errors.Is(err, ErrLength) {
		t.Errorf("length: %v", err)
	}
}
