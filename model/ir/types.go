package ir

import (
	"fmt"
	"strings"
)

// DType is the element type of a value.
type DType uint8

// The element types a graph can carry. Weights may be stored in any of the
// floating types; which of them a kernel takes is the device's table.
const (
	Invalid DType = iota
	F32
	BF16
	F16
	I32
)

// Size is the number of bytes of one element.
func (d DType) Size() int {
	switch d {
	case F32, I32:
		return 4
	case BF16, F16:
		return 2
	}
	return 0
}

func (d DType) String() string {
	switch d {
	case F32:
		return "f32"
	case BF16:
		return "bf16"
	case F16:
		return "f16"
	case I32:
		return "i32"
	}
	return "invalid"
}

// Sym is a symbolic size: a number known only when a program runs.
type Sym uint8

// The symbols of the packed batch. None is the constant 1.
const (
	None Sym = iota
	T        // tokens in the packed batch
	S        // sequences (datums) in the packed batch
	S1       // S+1, the length of an offsets array
	R        // rows selected for the output head
	C        // targets per row (1, or K for K-target cross-entropy)
	P        // pages in the key-value cache
	B        // block-table columns: pages of the longest sequence
	L        // slots of recurrent state, one a live sequence
	numSyms
)

var symNames = [numSyms]string{"1", "T", "S", "S1", "R", "C", "P", "B", "L"}

func (s Sym) String() string {
	if s < numSyms {
		return symNames[s]
	}
	return fmt.Sprintf("sym(%d)", uint8(s))
}

// Dims gives every symbol its number for one run.
type Dims struct{ T, S, R, C, P, B, L int }

// Of is the value of a symbol under d.
func (d Dims) Of(s Sym) int {
	switch s {
	case None:
		return 1
	case T:
		return d.T
	case S:
		return d.S
	case S1:
		return d.S + 1
	case R:
		return d.R
	case C:
		return d.C
	case P:
		return d.P
	case B:
		return d.B
	case L:
		return d.L
	}
	return 0
}

// Within reports whether no symbol of d exceeds that of capacity.
func (d Dims) Within(capacity Dims) bool {
	for s := T; s < numSyms; s++ {
		if d.Of(s) > capacity.Of(s) {
			return false
		}
	}
	return true
}

// Dim is one axis: N times the symbol's value.
type Dim struct {
	Sym Sym
	N   int
}

// Const is an axis of fixed size.
func Const(n int) Dim { return Dim{None, n} }

// Of is an axis of the symbol's own size.
func Of(s Sym) Dim { return Dim{s, 1} }

// Size is the axis's length under d.
func (d Dim) Size(dims Dims) int { return d.N * dims.Of(d.Sym) }

func (d Dim) String() string {
	switch {
	case d.Sym == None:
		return fmt.Sprint(d.N)
	case d.N == 1:
		return d.Sym.String()
	}
	return fmt.Sprintf("%d%s", d.N, d.Sym)
}

// Shape is a list of axes, outermost first. A scalar has none.
type Shape []Dim

// Elements is the number of elements under dims.
func (s Shape) Elements(dims Dims) int64 {
	n := int64(1)
	for _, d := range s {
		n *= int64(d.Size(dims))
	}
	return n
}

// Equal reports whether both shapes have the same axes.
func (s Shape) Equal(o Shape) bool {
	if len(s) != len(o) {
		return false
	}
	for i := range s {
		if s[i] != o[i] {
			return false
		}
	}
	return true
}

func (s Shape) String() string {
	parts := make([]string, len(s))
	for i, d := range s {
		parts[i] = d.String()
	}
	return "[" + strings.Join(parts, ",") + "]"
}

// Type is what is known of a value before it is computed.
type Type struct {
	DType DType
	Shape Shape
}

// Bytes is the memory of a value of this type under dims.
func (t Type) Bytes(dims Dims) int64 { return t.Shape.Elements(dims) * int64(t.DType.Size()) }

func (t Type) String() string { return t.DType.String() + t.Shape.String() }
