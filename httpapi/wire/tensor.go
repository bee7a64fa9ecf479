package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// DType is the element type of a tensor on the wire.
type DType int32

// The numbers are those of the schema. Int32 and BFloat16 are widened on reading: a decoded Tensor is Float32 or Int64.
const (
	Unspecified DType = 0
	Float32     DType = 1
	Int64       DType = 2
	Int32       DType = 3
	BFloat16    DType = 4
)

var dtypes = map[DType]struct {
	name  string
	bytes int // per element
}{Float32: {"float32", 4}, Int64: {"int64", 8}, Int32: {"int32", 4}, BFloat16: {"bfloat16", 2}}

func (d DType) String() string {
	if t, ok := dtypes[d]; ok {
		return t.name
	}
	return fmt.Sprintf("dtype(%d)", int32(d))
}

const (
	// MaxDims is the largest rank of a tensor on the wire.
	MaxDims = 8
	// MaxDenseElements bounds what the sparse tensors of one request may expand to, all together: a few bytes can
	// claim any number of columns, so this cannot be tied to the size of the body. 1<<25 elements are 256 MiB of int64.
	MaxDenseElements = 1 << 25
)

// Tensor is an array in row-major order. Exactly one of F32 and I64 is used, as DType (Float32 or Int64) says.
type Tensor struct {
	DType DType
	Shape []int
	F32   []float32
	I64   []int64
	// CSR is set for a tensor kept sparse; F32 or I64 then hold the listed values only and Shape is [rows, columns].
	CSR *CSR
}

// CSR says where the values of a sparse tensor belong: row r owns values Crow[r] up to Crow[r+1], at columns Col.
type CSR struct {
	Crow []int64 // [rows+1], rising from 0 to the number of values
	Col  []int64 // [values]
}

// FloatTensor is a dense Float32 tensor that takes over v; no shape means one dimension.
func FloatTensor(v []float32, shape ...int) Tensor {
	if len(shape) == 0 {
		shape = []int{len(v)}
	}
	return Tensor{DType: Float32, Shape: shape, F32: v}
}

// IntTensor is a dense Int64 tensor that takes over v; no shape means one dimension.
func IntTensor(v []int64, shape ...int) Tensor {
	if len(shape) == 0 {
		shape = []int{len(v)}
	}
	return Tensor{DType: Int64, Shape: shape, I64: v}
}

// Len is the number of stored values.
func (t Tensor) Len() int {
	if t.DType == Int64 {
		return len(t.I64)
	}
	return len(t.F32)
}

// elements is the product of a shape, with every dimension and the product within int32 so that nothing overflows.
func elements(shape []int) (int, error) {
	if len(shape) > MaxDims {
		return 0, fmt.Errorf("shape has %d dimensions, at most %d are taken", len(shape), MaxDims)
	}
	for i, d := range shape {
		if d < 0 || d > math.MaxInt32 {
			return 0, fmt.Errorf("dimension %d of shape %v is out of range", i, shape)
		}
	}
	if slices.Contains(shape, 0) {
		return 0, nil
	}
	n := 1
	for _, d := range shape {
		if n > math.MaxInt32/d {
			return 0, fmt.Errorf("shape %v has too many elements", shape)
		}
		n *= d
	}
	return n, nil
}

// check tells whether shape, values and indices agree.
func (t Tensor) check() error {
	if t.DType != Float32 && t.DType != Int64 {
		return fmt.Errorf("dtype %v cannot be held; use float32 or int64", t.DType)
	}
	if t.DType == Float32 && t.I64 != nil || t.DType == Int64 && t.F32 != nil {
		return fmt.Errorf("%v tensor holds values of the other type", t.DType)
	}
	n, err := elements(t.Shape)
	if err != nil {
		return err
	}
	if t.CSR != nil {
		return t.checkCSR()
	}
	if n != t.Len() {
		return fmt.Errorf("shape %v wants %d elements, got %d", t.Shape, n, t.Len())
	}
	return nil
}

func (t Tensor) checkCSR() error {
	if len(t.Shape) != 2 {
		return fmt.Errorf("sparse tensor needs a shape [rows, columns], got %v", t.Shape)
	}
	rows, cols, values := t.Shape[0], int64(t.Shape[1]), t.Len()
	crow, col := t.CSR.Crow, t.CSR.Col
	if len(crow) != rows+1 {
		return fmt.Errorf("crow_indices has %d entries, %d rows want %d", len(crow), rows, rows+1)
	}
	if len(col) != values {
		return fmt.Errorf("col_indices has %d entries for %d values", len(col), values)
	}
	if crow[0] != 0 || crow[rows] != int64(values) {
		return fmt.Errorf("crow_indices runs from %d to %d, want 0 to %d", crow[0], crow[rows], values)
	}
	for r := range rows {
		if crow[r+1] < crow[r] || crow[r+1] > int64(values) {
			return fmt.Errorf("crow_indices[%d] is %d after %d", r+1, crow[r+1], crow[r])
		}
		for i := crow[r]; i < crow[r+1]; i++ {
			if col[i] < 0 || col[i] >= cols {
				return fmt.Errorf("col_indices[%d] is %d, outside the %d columns", i, col[i], cols)
			}
			if i > crow[r] && col[i] <= col[i-1] {
				return fmt.Errorf("col_indices[%d] is %d after %d in row %d; columns of a row must rise", i, col[i], col[i-1], r)
			}
		}
	}
	return nil
}

// Dense returns the tensor with absent entries as 0, itself if it is dense already. More than limit elements are refused.
func (t Tensor) Dense(limit int) (Tensor, error) {
	if err := t.check(); err != nil {
		return Tensor{}, err
	}
	if t.CSR == nil {
		return t, nil
	}
	n, err := elements(t.Shape)
	if err != nil {
		return Tensor{}, err
	}
	if n > limit {
		return Tensor{}, fmt.Errorf("sparse tensor of shape %v expands to %d elements, %d are left of the request's %d;"+
			" send fewer datums per request", t.Shape, n, max(limit, 0), MaxDenseElements)
	}
	d := Tensor{DType: t.DType, Shape: t.Shape}
	if t.DType == Int64 {
		d.I64 = scatter(t.I64, t.CSR, n, t.Shape[1])
	} else {
		d.F32 = scatter(t.F32, t.CSR, n, t.Shape[1])
	}
	return d, nil
}

// scatter lays out checked CSR values as [rows, cols], n elements in all.
func scatter[T float32 | int64](values []T, at *CSR, n, cols int) []T {
	dense := make([]T, n)
	for r := range len(at.Crow) - 1 {
		for i := at.Crow[r]; i < at.Crow[r+1]; i++ {
			dense[r*cols+int(at.Col[i])] = values[i]
		}
	}
	return dense
}

// decodeTensor reads a Tensor message and keeps its layout. A dense tensor is checked here, a sparse one by Dense.
func decodeTensor(msg []byte) (Tensor, error) {
	var (
		dtype                 DType
		shape                 []int64
		dense, values         []byte
		crow, col             []byte
		haveDense, haveSparse bool
	)
	err := eachField(msg, func(f field) (err error) {
		switch f.num {
		case 1:
			dense, err = f.message()
			haveDense, haveSparse = true, false
			return named("dense", err)
		case 2:
			var csr []byte
			if csr, err = f.message(); err == nil {
				values, crow, col, err = decodeCSR(csr)
			}
			haveDense, haveSparse = false, true
			return named("sparse_csr", err)
		case 3:
			var v int64
			v, err = f.varint()
			dtype = DType(int32(v))
			return named("dtype", err)
		case 4:
			shape, err = f.appendInts(shape, MaxDims)
			return named("shape", err)
		}
		return nil
	})
	if err != nil {
		return Tensor{}, err
	}
	t := Tensor{Shape: make([]int, len(shape))}
	for i, d := range shape {
		if d < 0 || d > math.MaxInt32 {
			return Tensor{}, fmt.Errorf("dimension %d of shape %v is out of range", i, shape)
		}
		t.Shape[i] = int(d)
	}
	switch {
	case haveSparse:
		if t.CSR, err = decodeIndices(crow, col); err != nil {
			return Tensor{}, err
		}
		err = t.setValues(dtype, values)
	case haveDense:
		err = t.setDense(dtype, dense)
	default:
		err = errors.New("holds neither dense nor sparse_csr data")
	}
	return t, err
}

// setDense takes the values of a dense tensor; an empty shape is one that the sender did not know: one dimension.
func (t *Tensor) setDense(dtype DType, raw []byte) error {
	info, ok := dtypes[dtype]
	if !ok {
		return fmt.Errorf("%v is not known; use float32 or int64", dtype)
	}
	if len(t.Shape) == 0 {
		t.Shape = []int{len(raw) / info.bytes}
		return t.setValues(dtype, raw)
	}
	n, err := elements(t.Shape)
	if err != nil {
		return err
	}
	if n*info.bytes != len(raw) {
		return fmt.Errorf("shape %v wants %d bytes of %s, got %d", t.Shape, n*info.bytes, info.name, len(raw))
	}
	return t.setValues(dtype, raw)
}

// setValues converts little-endian bytes, widening Int32 and BFloat16.
func (t *Tensor) setValues(dtype DType, raw []byte) error {
	info, ok := dtypes[dtype]
	if !ok {
		return fmt.Errorf("%v is not known; use float32 or int64", dtype)
	}
	if len(raw)%info.bytes != 0 {
		return fmt.Errorf("%d bytes are not a whole number of %s values", len(raw), info.name)
	}
	n := len(raw) / info.bytes
	switch dtype {
	case Float32:
		t.DType, t.F32 = Float32, float32s(raw)
	case BFloat16: // the upper half of a float32
		t.DType, t.F32 = Float32, make([]float32, n)
		for i := range n {
			t.F32[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(raw[2*i:])) << 16)
		}
	case Int64:
		t.DType, t.I64 = Int64, int64s(raw)
	case Int32:
		t.DType, t.I64 = Int64, make([]int64, n)
		for i := range n {
			t.I64[i] = int64(int32(binary.LittleEndian.Uint32(raw[4*i:])))
		}
	}
	return nil
}

func decodeCSR(msg []byte) (values, crow, col []byte, err error) {
	err = eachField(msg, func(f field) (err error) {
		switch f.num {
		case 1:
			values, err = f.message()
			return named("values", err)
		case 2:
			crow, err = f.message()
			return named("crow_indices", err)
		case 3:
			col, err = f.message()
			return named("col_indices", err)
		}
		return nil
	})
	return values, crow, col, err
}

func decodeIndices(crow, col []byte) (*CSR, error) {
	if len(crow)%8 != 0 {
		return nil, fmt.Errorf("sparse_csr: crow_indices: %d bytes are not a whole number of int64 values", len(crow))
	}
	if len(col)%8 != 0 {
		return nil, fmt.Errorf("sparse_csr: col_indices: %d bytes are not a whole number of int64 values", len(col))
	}
	return &CSR{Crow: int64s(crow), Col: int64s(col)}, nil
}

// appendTensor writes a checked tensor as a message body.
func appendTensor(b []byte, t Tensor) []byte {
	var raw []byte
	if t.DType == Int64 {
		raw = int64Bytes(t.I64)
	} else {
		raw = float32Bytes(t.F32)
	}
	if t.CSR == nil {
		b = appendBytesField(b, 1, raw)
	} else {
		csr := appendBytesField(nil, 1, raw)
		csr = appendBytesField(csr, 2, int64Bytes(t.CSR.Crow))
		csr = appendBytesField(csr, 3, int64Bytes(t.CSR.Col))
		b = appendBytesField(b, 2, csr)
	}
	b = appendVarintField(b, 3, int64(t.DType))
	return appendPackedField(b, 4, t.Shape)
}

// named prefixes a cause with the field it belongs to, if there is a cause.
func named(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", name, err)
}

// The wire is little-endian whatever the machine is. Lengths have been checked by the callers of the readers.

func float32s(raw []byte) []float32 {
	v := make([]float32, len(raw)/4)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return v
}

func int64s(raw []byte) []int64 {
	v := make([]int64, len(raw)/8)
	for i := range v {
		v[i] = int64(binary.LittleEndian.Uint64(raw[8*i:]))
	}
	return v
}

func appendInt32s(into []int32, raw []byte) []int32 {
	for i := 0; i+4 <= len(raw); i += 4 {
		into = append(into, int32(binary.LittleEndian.Uint32(raw[i:])))
	}
	return into
}

func float32Bytes(v []float32) []byte {
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

func int64Bytes(v []int64) []byte {
	b := make([]byte, 0, 8*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint64(b, uint64(x))
	}
	return b
}

func int32Bytes(v []int32) []byte {
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, uint32(x))
	}
	return b
}
