package chat

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/tetratelabs/wazero"
)

// Limits bound what one template may use. A field that is zero means the one of DefaultLimits.
type Limits struct {
	Source int           // bytes of a template
	Input  int           // bytes of a conversation and its variables, as JSON
	Output int           // bytes of rendered text
	Fuel   uint64        // steps of the interpreter; making 64 bytes of text is a step too
	Time   time.Duration // one compilation or rendering
	Memory int           // bytes of one instance, in whole pages of 64 KiB
	Cached int           // templates kept compiled
}

// DefaultLimits leave a long conversation room and end a hostile template in seconds.
var DefaultLimits = Limits{
	Source: 1 << 20,
	Input:  8 << 20,
	Output: 16 << 20,
	Fuel:   20_000_000,
	Time:   5 * time.Second,
	Memory: 64 << 20,
	Cached: 32,
}

const pageBytes = 64 << 10

// pages is how many of WebAssembly's pages an instance may have.
func (l Limits) pages() int { return max(1, l.Memory/pageBytes) }

func (l Limits) withDefaults() Limits {
	d := DefaultLimits
	for _, f := range []struct {
		v    *int
		dflt int
	}{
		{&l.Source, d.Source}, {&l.Input, d.Input}, {&l.Output, d.Output}, {&l.Memory, d.Memory}, {&l.Cached, d.Cached},
	} {
		if *f.v <= 0 {
			*f.v = f.dflt
		}
	}
	if l.Fuel == 0 {
		l.Fuel = d.Fuel
	}
	if l.Time <= 0 {
		l.Time = d.Time
	}
	return l
}

// Engine compiles templates under one set of limits and keeps them. It is safe for concurrent use.
type Engine struct {
	limits Limits
	slots  chan struct{} // one for each instance at work

	start    sync.Once
	startErr error
	runtime  wazero.Runtime
	module   wazero.CompiledModule

	idle atomic.Int64 // bytes of all waiting instances
	open atomic.Int64 // instances, waiting and at work

	mu    sync.Mutex
	cache map[[sha256.Size]byte]*list.Element // of *Template
	order *list.List                          // most recently used first
}

// NewEngine makes an engine. The first use of one compiles the interpreter, which takes about a second.
func NewEngine(limits Limits) *Engine {
	return &Engine{
		limits: limits.withDefaults(),
		slots:  make(chan struct{}, max(4, 2*runtime.GOMAXPROCS(0))),
		cache:  map[[sha256.Size]byte]*list.Element{},
		order:  list.New(),
	}
}

// compiled has the interpreter's machine code, which all engines share.
var compiled = wazero.NewCompilationCache()

var shared = sync.OnceValue(func() *Engine { return NewEngine(DefaultLimits) })

// Compile compiles a template under DefaultLimits with the engine that all callers share. A source compiled before
// gives the same Template.
func Compile(source string) (*Template, error) { return shared().Compile(context.Background(), source) }

// Close frees the engine's memory. Its templates must not be used afterwards.
func (e *Engine) Close(ctx context.Context) error {
	// an engine that was never used has nothing to free, and cannot be started any more
	e.start.Do(func() { e.startErr = fmt.Errorf("start template engine: closed: %w", ErrRender) })
	if e.runtime == nil {
		return nil
	}
	e.mu.Lock()
	for el := e.order.Front(); el != nil; el = el.Next() {
		el.Value.(*cacheEntry).template.drop(true)
	}
	e.mu.Unlock()
	if err := e.runtime.Close(ctx); err != nil {
		return fmt.Errorf("close template engine: %w", err)
	}
	return nil
}

func (e *Engine) prepare() error {
	e.start.Do(func() {
		code, err := moduleBytes()
		if err != nil {
			e.startErr = err
			return
		}
		ctx := context.Background()
		e.runtime = wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfig().
			WithMemoryLimitPages(uint32(e.limits.pages())).
			WithCompilationCache(compiled).
			WithCloseOnContextDone(true))
		if e.module, err = e.runtime.CompileModule(ctx, code); err != nil {
			e.startErr = fmt.Errorf("start template engine: %w", err)
		}
	})
	return e.startErr
}

// Compile gives the template of a source, from the cache if it was compiled before.
func (e *Engine) Compile(ctx context.Context, source string) (*Template, error) {
	if len(source) > e.limits.Source {
		return nil, &LimitError{Limit: "source", Detail: fmt.Sprintf("%d bytes, the limit is %d", len(source), e.limits.Source)}
	}
	if !utf8.ValidString(source) {
		return nil, fmt.Errorf("compile chat template: the source is not UTF-8: %w", ErrSyntax)
	}
	if err := e.prepare(); err != nil {
		return nil, err
	}
	key := sha256.Sum256([]byte(source))
	if t := e.cached(key); t != nil {
		return t, nil
	}
	request, err := json.Marshal(map[string]any{"source": source, "fuel": e.limits.Fuel})
	if err != nil {
		return nil, fmt.Errorf("compile chat template: %w", err)
	}
	t := &Template{engine: e, request: request}
	release, err := e.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	in, err := t.open(ctx)
	if err != nil {
		return nil, err
	}
	t.put(in)
	return e.keep(key, t), nil
}

func (e *Engine) cached(key [sha256.Size]byte) *Template {
	e.mu.Lock()
	defer e.mu.Unlock()
	el, ok := e.cache[key]
	if !ok {
		return nil
	}
	e.order.MoveToFront(el)
	return el.Value.(*cacheEntry).template
}

type cacheEntry struct {
	key      [sha256.Size]byte
	template *Template
}

// keep puts the template in the cache, unless another caller was faster, and drops the one used longest ago.
func (e *Engine) keep(key [sha256.Size]byte, t *Template) *Template {
	e.mu.Lock()
	var retired []*Template
	if el, ok := e.cache[key]; ok {
		retired = append(retired, t)
		t = el.Value.(*cacheEntry).template
	} else {
		e.cache[key] = e.order.PushFront(&cacheEntry{key, t})
		for e.order.Len() > e.limits.Cached {
			old := e.order.Remove(e.order.Back()).(*cacheEntry)
			delete(e.cache, old.key)
			retired = append(retired, old.template)
		}
	}
	e.mu.Unlock()
	for _, r := range retired {
		r.drop(true)
	}
	return t
}

// shrink closes waiting instances while they have more memory than idleBytes, those of the templates used longest ago
// first. Such a template stays in the cache: its next rendering loads it anew.
func (e *Engine) shrink() {
	if e.idle.Load() <= idleBytes {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for el := e.order.Back(); el != nil && e.idle.Load() > idleBytes; el = el.Prev() {
		el.Value.(*cacheEntry).template.drop(false)
	}
}

// acquire waits for a slot, so that instances at work never hold more than their number times the memory limit.
func (e *Engine) acquire(ctx context.Context) (release func(), err error) {
	select {
	case e.slots <- struct{}{}:
		return func() { <-e.slots }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("render chat template: wait for a free instance: %w", ctx.Err())
	}
}
