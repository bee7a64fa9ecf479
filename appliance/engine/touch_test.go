package engine

import (
	"errors"
	"testing"

	"smolgym/kernels"
	"smolgym/kernels/reference"
	"smolgym/model/ir"
	"smolgym/model/plan"
)

// ledger is a device that notes what is written between two questions.
type ledger struct {
	kernels.Device
	t       *testing.T
	between int64 // bytes since the last question
	total   int64
	runs    int
}

func (l *ledger) Write(dst kernels.Buffer, offset int64, src []byte) error {
	l.between, l.total = l.between+int64(len(src)), l.total+int64(len(src))
	if l.between > touchPiece {
		l.t.Errorf("%d bytes written without a question", l.between)
	}
	return l.Device.Write(dst, offset, src)
}

func (l *ledger) Copy(dst kernels.Buffer, to int64, src kernels.Buffer, from, n int64) error {
	l.between, l.total = l.between+n, l.total+n
	if l.between > touchPiece {
		l.t.Errorf("%d bytes copied without a question", l.between)
	}
	return l.Device.Copy(dst, to, src, from, n)
}

func (l *ledger) Run(p *ir.Program, dims ir.Dims, slots []kernels.Buffer, arena kernels.Buffer, yield func(bool) error) error {
	l.runs++
	return nil // what it computes is others' to test
}

func (l *ledger) yield(bool) error { l.between = 0; return nil }

// TestTouch: memory that a program writes for the first time is there before it
// runs, brought in with questions between, and no more of it than the batch takes.
func TestTouch(t *testing.T) {
	const width, row = 1024, 4 * 1024
	l := &ledger{Device: reference.Open(reference.Options{MemoryBytes: 1 << 30}), t: t}
	g := ir.New("touch")
	x := g.Input("x", ir.F32, ir.Of(ir.T), ir.Const(width))
	a := g.Op1(ir.OpNeg, ir.Attrs{}, x)
	b := g.Op1(ir.OpExp, ir.Attrs{}, x)
	g.Output("y", g.Op1(ir.OpAdd, ir.Attrs{}, a, b))
	g, err := g.Finish()
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan.Build(g, ir.Dims{T: 8192, S: 1, R: 1, C: 1, P: 1, B: 1})
	if err != nil {
		t.Fatal(err)
	}
	if p.ArenaBytes < 8192*row {
		t.Fatalf("the arena has %d bytes: nothing to see", p.ArenaBytes)
	}
	w := newWorkspace(l)
	defer w.free()
	run := func(tokens int, yield func(bool) error) int64 {
		t.Helper()
		if _, err := w.buffer("x", int64(tokens*row)); err != nil {
			t.Fatal(err)
		}
		l.total = 0
		if err := w.run(p, ir.Dims{T: tokens, S: 1, R: 1, C: 1, P: 1, B: 1}, nil, yield); err != nil {
			t.Fatal(err)
		}
		return l.total
	}
	values := int64(0) // with places in the arena
	for _, s := range p.Steps {
		for _, r := range s.Out {
			if r.Space != ir.External {
				values++
			}
		}
	}
	const tokens = 1536
	used := values * tokens * row
	if got := run(tokens, l.yield); got < used+tokens*row || got > used+tokens*row+values*2*touchPiece {
		t.Errorf("%d bytes touched for %d in the arena and %d of output", got, used, tokens*row)
	}
	if got := run(tokens, l.yield); got != 0 {
		t.Errorf("%d bytes touched again", got)
	}
	if got := run(2*tokens, l.yield); got == 0 || got > used+2*tokens*row+values*2*touchPiece {
		t.Errorf("%d bytes touched for a batch twice as long", got)
	}
	if got := run(4*tokens, nil); got != 0 {
		t.Errorf("%d bytes touched where nobody may be asked", got)
	}
	if l.runs != 4 {
		t.Errorf("%d runs", l.runs)
	}
	stop := errors.New("stop")
	w.free()
	w = newWorkspace(l)
	if err := w.run(p, ir.Dims{T: tokens, S: 1, R: 1, C: 1, P: 1, B: 1}, nil, func(bool) error { l.between = 0; return stop }); !errors.Is(err, stop) || l.runs != 4 {
		t.Errorf("after a yield that ends the run: %v, %d runs", err, l.runs)
	}
}

// TestPieces: a long copy and a long clearing ask in between and do all of it.
func TestPieces(t *testing.T) {
	l := &ledger{Device: reference.Open(reference.Options{MemoryBytes: 1 << 30}), t: t}
	const bytes = 2*touchPiece + 12
	raw := make([]byte, bytes)
	for i := range raw {
		raw[i] = byte(i%250 + 1)
	}
	src, err := alloc(l, bytes, "src")
	if err != nil {
		t.Fatal(err)
	}
	dst, err := alloc(l, bytes, "dst")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Device.Write(src, 0, raw); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, bytes)
	read := func() {
		if err := l.Read(got, dst, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := copyPieces(l, dst, src, bytes, l.yield); err != nil {
		t.Fatal(err)
	}
	if read(); string(got) != string(raw) {
		t.Error("a copy in pieces is not one")
	}
	if err := clearPieces(l, dst, 4, bytes, l.yield); err != nil {
		t.Fatal(err)
	}
	if read(); string(got[:4]) != string(raw[:4]) || string(got[4:]) != string(make([]byte, bytes-4)) {
		t.Error("what was cleared is not all that was to be")
	}
}
