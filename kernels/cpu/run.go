//go:build linux && cgo

package cpu

/*
#include "step.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"runtime/cgo"
	"unsafe"

	"smolgym/kernels"
	"smolgym/model/ir"
)

// binding is one run's sizes and scratch memory; the slots are in compiled.
type binding struct {
	syms  [C.MAX_SYM]C.int64_t
	arena *C.char
}

// Run executes the program; see kernels.Device. Every integer input is checked
// before the first step, so a refused batch has changed nothing.
func (d *Device) Run(p *ir.Program, dims ir.Dims, slots []kernels.Buffer, arena kernels.Buffer, yield func(between bool) error) error {
	if d.ctx == nil {
		return fmt.Errorf("run %s: %w: the device is closed", p.Graph.Name, kernels.ErrInput)
	}
	e, err := d.programs.get(p)
	if err != nil {
		return fmt.Errorf("run %s: %w", p.Graph.Name, err)
	}
	var b binding
	if err := d.bind(e, &b, dims, slots, arena); err != nil {
		return fmt.Errorf("run %s: %w", p.Graph.Name, err)
	}
	if len(e.steps) == 0 {
		return nil
	}
	return d.execute(e, &b, yield)
}

// pause is a run that stops to let others in.
type pause struct {
	dev   *Device
	yield func(between bool) error
	err   error
}

// call lets others in; what they run has a context of its own, since an op may be
// half done in this one.
func (p *pause) call(between bool) bool {
	p.dev.depth++
	p.err = p.yield(between)
	p.dev.depth--
	return p.err != nil
}

//export cpuPause
func cpuPause(handle C.uintptr_t) C.int {
	if cgo.Handle(handle).Value().(*pause).call(false) {
		return 1
	}
	return 0
}

// context is that of the run which is beginning.
func (d *Device) context() (*C.context, error) {
	if d.depth == 0 {
		return d.ctx, nil
	}
	for len(d.inner) < d.depth {
		ctx := C.cpu_open(d.ctx.threads, d.ctx.level)
		if ctx == nil {
			return nil, fmt.Errorf("%w: no scratch memory for a run inside another", kernels.ErrMemory)
		}
		d.inner = append(d.inner, ctx)
	}
	return d.inner[d.depth-1], nil
}

func (d *Device) bind(e *compiled, b *binding, dims ir.Dims, slots []kernels.Buffer, arena kernels.Buffer) error {
	p := e.program
	b.syms[ir.None] = 1
	for s := ir.T; s < C.MAX_SYM; s++ {
		n := dims.Of(s)
		if n < 0 || n > p.Capacity.Of(s) {
			return fmt.Errorf("%w: %s is %d, the program was planned for %d", kernels.ErrInput, s, n, p.Capacity.Of(s))
		}
		b.syms[s] = C.int64_t(n)
	}
	if len(slots) != len(p.Slots) {
		return fmt.Errorf("%w: %d buffers bound, the program has %d slots", kernels.ErrInput, len(slots), len(p.Slots))
	}
	for i := range p.Slots {
		mem, err := d.span("bind", slots[i], 0, p.Slots[i].Type.Bytes(dims))
		if err != nil {
			return fmt.Errorf("slot %s: %w", p.Slots[i].Name, err)
		}
		if p.Slots[i].Class == ir.ClassGroup {
			if err := slots[i].(*buffer).groupAlive(); err != nil {
				return fmt.Errorf("slot %s: %w", p.Slots[i].Name, err)
			}
		}
		e.slots[i] = uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	}
	if p.ArenaBytes > 0 {
		mem, err := d.span("use arena", arena, 0, p.ArenaBytes)
		if err != nil {
			return err
		}
		b.arena = (*C.char)(unsafe.Pointer(unsafe.SliceData(mem)))
	}
	return nil
}

func (d *Device) execute(e *compiled, b *binding, yield func(between bool) error) error {
	steps, n := &e.steps[0], C.int32_t(len(e.steps))
	slots := (*unsafe.Pointer)(unsafe.Pointer(unsafe.SliceData(e.slots)))
	if f := C.cpu_check(steps, n, &b.syms[0], slots, b.arena); f.code != C.OK {
		return failed(e, f)
	}
	ctx, err := d.context()
	if err != nil {
		return err
	}
	p, handle := &pause{dev: d, yield: yield}, C.uintptr_t(0)
	if yield != nil {
		h := cgo.NewHandle(p)
		defer h.Delete()
		handle = C.uintptr_t(h)
	}
	for at := C.int32_t(0); at < n; {
		var f C.failure
		if at = C.cpu_run(ctx, steps, n, at, handle, &b.syms[0], slots, b.arena, &f); at < 0 {
			return failed(e, f)
		}
		if p.err != nil || yield != nil && e.steps[at-1].yield != 0 && p.call(true) {
			return p.err
		}
	}
	runtime.KeepAlive(e)
	return nil
}

// operandNames are the integer operands by op, for messages.
var operandNames = map[ir.Op][]string{
	ir.OpEmbed: {"ids"}, ir.OpGatherRows: {1: "rows"}, ir.OpRope: {1: "pos"}, ir.OpAttention: {3: "offsets"}, ir.OpAttentionGrad: {6: "offsets"},
	ir.OpKVWrite: {2: "offsets", 3: "start", 4: "table"}, ir.OpPagedAttention: {3: "offsets", 4: "start", 5: "table"},
	ir.OpLogProb: {1: "targets"}, ir.OpLogProbGrad: {2: "targets"}, ir.OpSegmentSum: {1: "offsets"}, ir.OpSegmentExpand: {1: "offsets"},
	ir.OpLinearGradW: {3: "offsets"}, ir.OpBiasGrad: {2: "offsets"}, ir.OpRMSNormGradW: {3: "offsets"}, ir.OpEmbedGrad: {1: "ids", 3: "offsets"},
	ir.OpTopKGrad: {1: "experts"}, ir.OpExpertLinear: {2: "experts"}, ir.OpExpertGradX: {2: "experts"}, ir.OpExpertGradW: {3: "experts", 4: "offsets"},
	ir.OpConv: {2: "offsets"}, ir.OpConvGrad: {2: "offsets"}, ir.OpConvGradW: {3: "offsets"}, ir.OpConvState: {3: "offsets", 4: "start", 5: "slot"},
	ir.OpAdapt: {3: "place"},
	ir.OpDelta: {5: "offsets"}, ir.OpDeltaGrad: {6: "offsets"}, ir.OpDeltaState: {6: "offsets", 7: "start", 8: "slot"},
}

// failed puts a failure in words.
func failed(e *compiled, f C.failure) error {
	p := e.program
	op := p.Graph.Nodes[p.Steps[f.step].Node].Op
	where := fmt.Sprintf("run %s: step %d %s", p.Graph.Name, f.step, op)
	if f.code == C.NO_MEMORY {
		return fmt.Errorf("%s: %w: no scratch memory", where, kernels.ErrMemory)
	}
	name := fmt.Sprintf("input %d", f.operand)
	if names := operandNames[op]; int(f.operand) < len(names) {
		name = names[f.operand]
	}
	what := fmt.Sprintf("%s[%d] is %d", name, f.index, f.value)
	switch f.code {
	case C.BAD_ID, C.BAD_PAGE:
		what += fmt.Sprintf(", must be from 0 to %d", f.limit-1)
	case C.BAD_OFFSET:
		what += fmt.Sprintf(", must rise from 0 to %d", f.limit)
	case C.BAD_LAST_OFFSET:
		what += fmt.Sprintf(", must be the number of rows %d", f.limit)
	case C.BAD_SLOT:
		what += ", which another sequence of the batch has"
	case C.BAD_ADAPTER:
		what += fmt.Sprintf(", whose adapter does not fit module %d", f.limit)
	case C.BAD_START:
		what += fmt.Sprintf(", with its new tokens it must fit the table's %d", f.limit)
	}
	return fmt.Errorf("%s: %w: %s", where, kernels.ErrInput, what)
}
