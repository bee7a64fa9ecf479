package chat

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/sys"
)

// keepBytes is the most memory of an instance that goes back to the pool: WebAssembly memory never shrinks. A new instance
// has 2.3 MB, one that rendered 100 KB of conversation 3.5.
const keepBytes = 4 << 20

// idleInstances is how many instances of one template wait for work.
const idleInstances = 2

// idleBytes is the most memory that the waiting instances of all templates of an engine have together, so that a server
// with many templates, or one with templates made to be big, holds no more of it than this for weeks.
const idleBytes = 32 << 20

// instance is the module with one template loaded. It belongs to one goroutine at a time.
type instance struct {
	module                     api.Module
	memory                     *memory
	alloc, dealloc, exhaustedF api.Function
	limits                     Limits
	broken                     bool // trapped or ended by its deadline
}

// open makes an instance and loads the template into it.
func (t *Template) open(ctx context.Context) (*instance, error) {
	e := t.engine
	mem, err := e.newMemory()
	if err != nil {
		return nil, err
	}
	m, err := e.runtime.InstantiateModule(mem.attach(context.WithoutCancel(ctx)), e.module, wazero.NewModuleConfig().WithName(""))
	if err != nil {
		mem.close()
		return nil, fmt.Errorf("start template instance: %w", err)
	}
	f := m.ExportedFunction
	in := &instance{
		module: m, memory: mem, limits: e.limits,
		alloc: f("alloc"), dealloc: f("dealloc"), exhaustedF: f("exhausted"),
	}
	if _, err := in.call(ctx, "load", t.request); err != nil {
		in.close()
		return nil, err
	}
	return in, nil
}

// bytes is the size of the instance's memory.
func (in *instance) bytes() int64 { return int64(in.module.Memory().Size()) }

func (in *instance) close() {
	// closing an instance only drops memory; it has no handles that could fail
	_ = in.module.Close(context.Background())
	in.memory.close()
}

// call passes a request to the function of a name and gives the reply's payload. The function is looked up for each call:
// it has a stack of its own, which grows to megabytes where a template recurses, and never shrinks.
func (in *instance) call(parent context.Context, name string, request []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(parent, in.limits.Time)
	defer cancel()
	at, err := in.alloc.Call(ctx, uint64(len(request)))
	if err != nil {
		return nil, in.trap(parent, ctx, err)
	}
	if !in.module.Memory().Write(uint32(at[0]), request) {
		in.broken = true
		return nil, &LimitError{Limit: "memory", Detail: fmt.Sprintf("%d bytes", in.limits.Memory)}
	}
	packed, err := in.module.ExportedFunction(name).Call(ctx, at[0], uint64(len(request)))
	if err != nil {
		return nil, in.trap(parent, ctx, err)
	}
	addr, size := uint32(packed[0]>>32), uint32(packed[0])
	view, ok := in.module.Memory().Read(addr, size)
	if !ok || size == 0 {
		in.broken = true
		return nil, fmt.Errorf("render chat template: reply outside of the instance's memory: %w", ErrRender)
	}
	outcome, payload := view[0], append([]byte(nil), view[1:]...)
	for _, b := range [][2]uint64{{uint64(addr), uint64(size)}, {at[0], uint64(len(request))}} {
		if _, err := in.dealloc.Call(ctx, b[0], b[1]); err != nil {
			return nil, in.trap(parent, ctx, err)
		}
	}
	if outcome != outcomeOK {
		return nil, outcomeError(outcome, string(payload), in.limits)
	}
	return payload, nil
}

// trap says why the module stopped, and marks the instance as of no further use.
func (in *instance) trap(parent, ctx context.Context, err error) error {
	in.broken = true
	var exit *sys.ExitError
	switch {
	case parent.Err() != nil:
		return fmt.Errorf("render chat template: %w", parent.Err())
	case ctx.Err() != nil, errors.As(err, &exit):
		return &LimitError{Limit: "time", Detail: in.limits.Time.String()}
	case in.exhausted():
		return &LimitError{Limit: "memory", Detail: fmt.Sprintf("%d bytes", in.limits.Memory)}
	case strings.Contains(err.Error(), "stack overflow"), strings.Contains(err.Error(), "out of bounds memory access"):
		// the module's stack lies below its data, so that running over it is an access out of bounds
		return &LimitError{Limit: "recursion", Detail: "the interpreter's stack"}
	}
	return fmt.Errorf("render chat template: the interpreter stopped: %.200v: %w", err, ErrRender)
}

func (in *instance) exhausted() bool {
	r, err := in.exhaustedF.Call(context.Background())
	return err == nil && r[0] == 1
}
