package kerneltest

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"smolgym/kernels"
	"smolgym/model/ir"
)

// Refusals checks that bad data is refused with an error that wraps
// kernels.ErrInput and names op, operand and index, that nothing has run by
// then, and that memory keeps its bounds.
func Refusals(t *testing.T, oracle, dev kernels.Device) {
	tried := 0
	for _, op := range tested() {
		cs, err := Cases(oracle, op)
		if err != nil {
			t.Error(err)
		}
		if len(cs) < 2 {
			continue
		}
		c := cs[1]
		for i, o := range c.In {
			if o.Type.DType != ir.I32 {
				continue
			}
			for _, bad := range []int32{-1, math.MinInt32, math.MaxInt32, 1 << 20} {
				if bad > 0 && bad < math.MaxInt32 && i+2 == len(c.In) && op.Spec().InPlace == 1 && o.Type.Shape.Equal(ir.Shape{ir.Of(ir.S)}) {
					continue // where a stored state's sequence goes on: any position will do
				}
				for _, at := range []int{0, len(o.I) - 1} {
					if o.I[at] == -1 {
						continue // a table entry that is not used may be anything
					}
					b := c
					b.In = slices.Clone(c.In)
					b.In[i].I = slices.Clone(o.I)
					b.In[i].I[at] = bad
					_, err := Exec(dev, b)
					tried++
					if !errors.Is(err, kernels.ErrInput) || !strings.Contains(err.Error(), op.String()) || !strings.Contains(err.Error(), "[") {
						t.Errorf("%s: input %d[%d] = %d: error is %v", c, i, at, bad, err)
					}
				}
			}
		}
	}
	if tried < 100 {
		t.Errorf("only %d refusals tried", tried)
	}
	sizes(t, dev)
}

// sizes checks bindings that are too small and batches beyond capacity.
func sizes(t *testing.T, dev kernels.Device) {
	d := ir.Dims{T: 3}
	c := Case{Op: ir.OpAdd, Dims: d, In: []Operand{constants(make([]float32, 3), tokens), constants(make([]float32, 3), tokens)}}
	p, err := c.Program()
	if err != nil {
		t.Fatal(err)
	}
	alloc := func(n int64) kernels.Buffer {
		b, err := dev.Alloc(n)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Free)
		return b
	}
	good := []kernels.Buffer{alloc(12), alloc(12), alloc(12)}
	freed := alloc(12)
	freed.Free()
	freed.Free()
	for name, run := range map[string]func() error{
		"too few buffers":    func() error { return dev.Run(p, d, good[:2], nil, nil) },
		"a small buffer":     func() error { return dev.Run(p, d, []kernels.Buffer{good[0], good[1], alloc(11)}, nil, nil) },
		"no buffer":          func() error { return dev.Run(p, d, []kernels.Buffer{good[0], good[1], nil}, nil, nil) },
		"a freed buffer":     func() error { return dev.Run(p, d, []kernels.Buffer{good[0], good[1], freed}, nil, nil) },
		"more than capacity": func() error { return dev.Run(p, ir.Dims{T: 4}, good, nil, nil) },
		"a negative size":    func() error { return dev.Run(p, ir.Dims{T: -1}, good, nil, nil) },
		"write beyond":       func() error { return dev.Write(good[0], 9, make([]byte, 4)) },
		"write before":       func() error { return dev.Write(good[0], -1, make([]byte, 4)) },
		"read beyond":        func() error { return dev.Read(make([]byte, 13), good[0], 0) },
		"copy beyond":        func() error { return dev.Copy(good[0], 4, good[1], 0, 12) },
		"copy from beyond":   func() error { return dev.Copy(good[0], 0, good[1], math.MaxInt64, 12) },
		"zero freed memory":  func() error { return dev.Write(freed, 0, []byte{1}) },
	} {
		if err := run(); !errors.Is(err, kernels.ErrInput) {
			t.Errorf("%s: error is %v, want ErrInput", name, err)
		}
	}
	if _, err := dev.Alloc(1 << 60); !errors.Is(err, kernels.ErrMemory) && dev.Info().MemoryBytes > 0 {
		t.Errorf("an exabyte: error is %v, want ErrMemory", err)
	}
	memory(t, dev, good)
	yields(t, dev, p, d, good)
}

// memory checks that Alloc zeroes and that the copies copy.
func memory(t *testing.T, dev kernels.Device, b []kernels.Buffer) {
	got, data := make([]byte, 12), []byte("abcdefghijkl")
	if dev.Read(got, b[0], 0) != nil || !bytes.Equal(got, make([]byte, 12)) {
		t.Errorf("new memory holds %q", got)
	}
	err := errors.Join(dev.Write(b[0], 0, data), dev.Copy(b[1], 2, b[0], 4, 6), dev.Read(got, b[1], 0))
	if err != nil || string(got) != "\x00\x00efghij\x00\x00\x00\x00" {
		t.Errorf("copied %q, %v", got, err)
	}
	if err := errors.Join(dev.Copy(b[0], 1, b[0], 0, 11), dev.Read(got, b[0], 0)); err != nil || string(got) != "aabcdefghijk" {
		t.Errorf("overlapping copy gave %q, %v", got, err)
	}
	if err := errors.Join(dev.Zero(b[0]), dev.Zero(b[1]), dev.Read(got, b[0], 0)); err != nil || !bytes.Equal(got, make([]byte, 12)) {
		t.Errorf("zeroed memory holds %q, %v", got, err)
	}
}

// yields checks that a run stops where the program says and ends with the error it is given.
func yields(t *testing.T, dev kernels.Device, p *ir.Program, d ir.Dims, slots []kernels.Buffer) {
	long := *p
	long.Steps = nil
	for i := range 6 {
		s := p.Steps[0]
		s.Yield = i%2 == 1
		long.Steps = append(long.Steps, s)
	}
	calls, stop := 0, errors.New("stop")
	count := func(between bool) error {
		if !between {
			return nil
		}
		if calls++; calls == 5 {
			return stop
		}
		return nil
	}
	if err := dev.Run(&long, d, slots, nil, count); err != nil || calls != 3 {
		t.Errorf("6 steps with 3 yield points yielded %d times: %v", calls, err)
	}
	if err := dev.Run(&long, d, slots, nil, count); err != stop || calls != 5 {
		t.Errorf("error of yield came back as %v after %d calls", err, calls)
	}
	if err := dev.Run(&long, d, slots, nil, nil); err != nil {
		t.Errorf("run without yield: %v", err)
	}
}

// Pauses checks that a program may be run while another is inside a step: both
// have the bits they have alone, and an error of yield ends the run.
func Pauses(t *testing.T, oracle, dev kernels.Device) {
	cs, err := Cases(oracle, ir.OpLinear)
	if err != nil {
		t.Fatal(err)
	}
	small := cs[len(cs)-1]
	want, err := Exec(dev, small)
	if err != nil {
		t.Fatal(err)
	}
	// Long enough to be stopped in: several times 4 ms on any processor.
	m := &maker{rand.New(rand.NewPCG(1, 2)), oracle}
	d := ir.Dims{T: 512}
	long := Case{Op: ir.OpLinear, Dims: d, In: []Operand{m.floats(d, tokens, ir.Const(1024)), m.floats(d, ir.Const(2048), ir.Const(1024))}}
	alone, err := Exec(dev, long)
	if err != nil {
		t.Fatal(err)
	}
	inside := 0
	got, err := ExecYielding(dev, long, func(between bool) error {
		if between {
			return nil
		}
		inside++
		y, err := Exec(dev, small)
		if err == nil {
			err = sameAll(y[0], want[0])
		}
		return err
	})
	if err == nil {
		err = sameAll(got[0], alone[0])
	}
	if err != nil || inside == 0 {
		t.Errorf("%d runs inside a long step: %v", inside, err)
	}
	stop := errors.New("stop")
	if _, err := ExecYielding(dev, long, func(bool) error { return stop }); err != stop {
		t.Errorf("error of yield inside a step came back as %v", err)
	}
}
