//go:build linux && cgo

package cpu_test

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"smolgym/kernels"
	"smolgym/kernels/cpu"
	"smolgym/kernels/kerneltest"
	"smolgym/model/ir"
)

// clock is the time that counts: this thread's processor time where one thread
// works, so that a busy machine disturbs less; else the wall.
func clock(threads int) time.Duration {
	if threads > 1 {
		return time.Since(began)
	}
	const threadCPU = 3 // CLOCK_THREAD_CPUTIME_ID
	var ts syscall.Timespec
	if _, _, e := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, threadCPU, uintptr(unsafe.Pointer(&ts)), 0); e != 0 {
		return time.Since(began)
	}
	return time.Duration(ts.Nano())
}

var began = time.Now()

// best runs b's loop on one system thread and gives the shortest run in seconds.
func best(b *testing.B, threads int, run func()) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	least := time.Duration(math.MaxInt64)
	for b.Loop() {
		start := clock(threads)
		run()
		least = min(least, clock(threads)-start)
	}
	return least.Seconds()
}

// peak is the best of several short runs of independent FMAs on one thread, in GF/s.
func peak(dev kernels.Device) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	most := 0.0
	for range 10 {
		start := clock(1)
		flops := dev.(*cpu.Device).FMAPeak(1_000_000)
		most = max(most, flops/(clock(1)-start).Seconds()/1e9)
	}
	return most
}

// bind allocates the case's slots with random contents and gives a run.
func bind(b *testing.B, dev kernels.Device, c kerneltest.Case) func() {
	p, err := c.Program()
	if err != nil {
		b.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 1))
	slots := make([]kernels.Buffer, len(p.Slots))
	for i, s := range p.Slots {
		if slots[i], err = dev.Alloc(s.Type.Bytes(c.Dims)); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(slots[i].Free)
		if i < len(c.In) && c.In[i].I != nil {
			copy(cpu.Bytes(slots[i]), raw(c.In[i].I))
			continue
		}
		switch mem := cpu.Bytes(slots[i]); s.Type.DType {
		case ir.F32:
			f := floats(mem)
			for j := range f {
				f[j] = float32(r.NormFloat64())
			}
		case ir.BF16:
			for j := 0; j < len(mem); j += 2 {
				binary.LittleEndian.PutUint16(mem[j:], uint16(math.Float32bits(float32(r.NormFloat64()))>>16))
			}
		}
	}
	return func() {
		if err := dev.Run(p, c.Dims, slots, nil, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// products are GEMM shapes [M, K, N]: prefill and training, small models, decode.
var products = [][3]int{{2048, 256, 768}, {2048, 768, 256}, {2048, 256, 256}, {2048, 256, 128}, {2048, 256, 512}, {2048, 1024, 3072}, {2048, 1024, 1024}, {256, 256, 768}, {32, 1024, 3072}, {8, 1024, 3072}, {1, 1024, 3072}, {1, 256, 768}}

// product is a matrix product with weights of a type; LinearGradW has none.
func product(op ir.Op, weights ir.DType, m, k, n, length int) kerneltest.Case {
	f := func(shape ...ir.Dim) kerneltest.Operand {
		return kerneltest.Operand{Type: ir.Type{DType: ir.F32, Shape: shape}}
	}
	t, kd, nd := ir.Of(ir.T), ir.Const(k), ir.Const(n)
	offsets := []int32{0}
	for at := 0; at < m; {
		at = min(at+length, m)
		offsets = append(offsets, int32(at))
	}
	c := kerneltest.Case{Op: op, Dims: ir.Dims{T: m, S: len(offsets) - 1}}
	switch op {
	case ir.OpLinear:
		c.In = []kerneltest.Operand{f(t, kd), f(nd, kd)}
		c.In[1].Type.DType = weights
	case ir.OpLinearGradX:
		c.In = []kerneltest.Operand{f(t, nd), f(nd, kd)}
		c.In[1].Type.DType = weights
	case ir.OpLinearGradW:
		c.In = []kerneltest.Operand{f(nd, kd), f(t, nd), f(t, kd), {Type: ir.Type{DType: ir.I32, Shape: ir.Shape{ir.Of(ir.S1)}}, I: offsets}}
	}
	return c
}

// BenchmarkProducts reports GF/s in all, and per thread as a share of the
// measured peak of one thread.
func BenchmarkProducts(b *testing.B) {
	for _, level := range cpu.Levels() {
		if level == "portable" {
			continue
		}
		for _, threads := range []int{1, 2} {
			dev, err := cpu.Open(cpu.Options{Level: level, Threads: threads})
			if err != nil {
				b.Fatal(err)
			}
			for _, kind := range []struct {
				op      ir.Op
				weights ir.DType
			}{{ir.OpLinear, ir.F32}, {ir.OpLinear, ir.BF16}, {ir.OpLinearGradX, ir.F32}, {ir.OpLinearGradX, ir.BF16}, {ir.OpLinearGradW, ir.F32}} {
				for _, s := range products {
					if s[0] < 32 && kind.op != ir.OpLinear {
						continue
					}
					b.Run(fmt.Sprintf("%s/threads=%d/%s/%s/%dx%dx%d", level, threads, kind.op, kind.weights, s[0], s[1], s[2]), func(b *testing.B) {
						run := bind(b, dev, product(kind.op, kind.weights, s[0], s[1], s[2], s[0]))
						run()
						top := peak(dev)
						rate := 2 * float64(s[0]) * float64(s[1]) * float64(s[2]) / best(b, threads, run) / 1e9
						b.ReportMetric(rate, "GF/s")
						b.ReportMetric(100*rate/top/float64(threads), "%peak")
						b.ReportMetric(0, "ns/op")
					})
				}
			}
		}
	}
}

// BenchmarkGEMM reports GF/s of a Linear on the level and threads that a device
// takes by itself, for comparisons with others.
func BenchmarkGEMM(b *testing.B) {
	threads, err := strconv.Atoi(cmp.Or(os.Getenv("SMOLGYM_BENCH_THREADS"), strconv.Itoa(runtime.NumCPU())))
	if err != nil {
		b.Fatal(err)
	}
	dev, err := cpu.Open(cpu.Options{Threads: threads})
	if err != nil {
		b.Fatal(err)
	}
	for _, weights := range []ir.DType{ir.F32, ir.BF16} {
		for _, s := range products {
			b.Run(fmt.Sprintf("%s/%dx%dx%d", weights, s[0], s[1], s[2]), func(b *testing.B) {
				run := bind(b, dev, product(ir.OpLinear, weights, s[0], s[1], s[2], s[0]))
				run()
				b.ReportMetric(2*float64(s[0])*float64(s[1])*float64(s[2])/best(b, max(threads, 2), run)/1e9, "GF/s")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkShortDatums is the weight's gradient over datums of 24 tokens, GF/s of one thread.
func BenchmarkShortDatums(b *testing.B) {
	for _, level := range cpu.Levels() {
		if level == "portable" {
			continue
		}
		dev, err := cpu.Open(cpu.Options{Level: level, Threads: 1})
		if err != nil {
			b.Fatal(err)
		}
		for _, s := range [][3]int{{2048, 256, 768}, {2048, 768, 256}, {2048, 256, 256}, {2048, 256, 128}, {2048, 256, 512}} {
			b.Run(fmt.Sprintf("%s/%dx%dx%d", level, s[0], s[1], s[2]), func(b *testing.B) {
				run := bind(b, dev, product(ir.OpLinearGradW, ir.F32, s[0], s[1], s[2], 24))
				run()
				b.ReportMetric(2*float64(s[0])*float64(s[1])*float64(s[2])/best(b, 1, run)/1e9, "GF/s")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkDecode streams a model's worth of weights at M=1: GB/s.
func BenchmarkDecode(b *testing.B) {
	for _, threads := range []int{1, 2} {
		for _, m := range []int{1, 8, 32, -1, -8, -32} {
			weights := ir.F32
			if m < 0 {
				m, weights = -m, ir.BF16
			}
			b.Run(fmt.Sprintf("threads=%d/%s/M=%d", threads, weights, m), func(b *testing.B) {
				dev, err := cpu.Open(cpu.Options{Threads: threads})
				if err != nil {
					b.Fatal(err)
				}
				const k, n = 1024, 131072 // 512 MiB: beyond any cache
				run := bind(b, dev, product(ir.OpLinear, weights, m, k, n, m))
				b.ReportMetric(float64(weights.Size())*k*n/best(b, threads, run)/1e9, "GB/s")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkAttention reports GF/s on one thread: scores and values of the
// causal half, and 2.5 times that for the gradient.
func BenchmarkAttention(b *testing.B) {
	dev, err := cpu.Open(cpu.Options{Threads: 1})
	if err != nil {
		b.Fatal(err)
	}
	a := ir.Attrs{Heads: 16, KVHeads: 8, HeadDim: 128, Scale: 0.088}
	for _, op := range []ir.Op{ir.OpAttention, ir.OpAttentionGrad} {
		for _, t := range []int{256, 1024} {
			b.Run(fmt.Sprintf("%s/%d", op, t), func(b *testing.B) {
				f := func(n int) kerneltest.Operand {
					return kerneltest.Operand{Type: ir.Type{DType: ir.F32, Shape: ir.Shape{ir.Of(ir.T), ir.Const(n)}}}
				}
				q, kv := f(a.Heads*a.HeadDim), f(a.KVHeads*a.HeadDim)
				o := kerneltest.Operand{Type: ir.Type{DType: ir.I32, Shape: ir.Shape{ir.Of(ir.S1)}}, I: []int32{0, int32(t)}}
				c := kerneltest.Case{Op: op, Attr: a, Dims: ir.Dims{T: t, S: 1}, In: []kerneltest.Operand{q, kv, kv, o}}
				flops := 2 * float64(t) * float64(t) * float64(a.Heads*a.HeadDim)
				if op == ir.OpAttentionGrad {
					c.In = []kerneltest.Operand{q, kv, kv, q, f(a.Heads), q, o}
					flops *= 2.5
				}
				b.ReportMetric(flops/best(b, 1, bind(b, dev, c))/1e9, "GF/s")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkOverhead is a decode step of a tiny model: 100 additions of 64
// elements, in nanoseconds for each op.
func BenchmarkOverhead(b *testing.B) {
	dev, err := cpu.Open(cpu.Options{})
	if err != nil {
		b.Fatal(err)
	}
	f := kerneltest.Operand{Type: ir.Type{DType: ir.F32, Shape: ir.Shape{ir.Const(64)}}}
	one, err := kerneltest.Case{Op: ir.OpAdd, In: []kerneltest.Operand{f, f}}.Program()
	if err != nil {
		b.Fatal(err)
	}
	p := *one
	for len(p.Steps) < 100 {
		p.Steps = append(p.Steps, one.Steps[0])
	}
	var slots []kernels.Buffer
	for range p.Slots {
		buf, err := dev.Alloc(256)
		if err != nil {
			b.Fatal(err)
		}
		slots = append(slots, buf)
	}
	b.ReportMetric(1e9*best(b, 1, func() {
		if err := dev.Run(&p, ir.Dims{}, slots, nil, nil); err != nil {
			b.Fatal(err)
		}
	})/100, "ns/step")
	b.ReportMetric(0, "ns/op")
}
