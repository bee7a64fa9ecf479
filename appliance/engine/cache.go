package engine

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"smolgym/kernels"
	"smolgym/model/arch"
	"smolgym/model/ir"
)

// pageTokens is the size of a cache page.
const pageTokens = arch.Page

// prefix names the contents of a full page: the weights that computed it and
// every token from the start of the sequence to the page's end.
type prefix [16]byte

// cache is the paged key-value memory of one base model, shared by all samples
// of all weights on it. A page is held by the sequences whose tables name it;
// full pages of a prompt are shared between the samples of a group. A full page
// that nobody holds is kept under its prefix until the memory is needed, so that
// the next turn of a conversation finds it: the same kernels over the same
// blocks gave it the same bits it would get again.
type cache struct {
	dev    kernels.Device
	states map[string]kernels.Buffer // "kv.k.<layer>", "kv.v.<layer>": [pages, page*kv_heads*head_dim]
	rowB   map[string]int64          // bytes of one token's row
	pages  int
	free   []int32
	refs   []int32
	known  map[prefix]int32
	named  []prefix // of each page; zero: none
	idle   []int32  // known pages that nobody holds, longest idle first

	// Models with linear attention keep, beside pages, one row of recurrent
	// state a sequence: "conv.<layer>", "delta.<layer>" [slots, …].
	slots     int // 0: the model has none
	slotB     map[string]int64
	freeSlots []int32
}

// mostSlots bounds how many sequences with recurrent state live at once.
const mostSlots = 256

// noSlot is the slot of a sequence without recurrent state.
const noSlot = int32(-1)

// slotsFor is how many rows of recurrent state fit a quarter of the free
// memory: 0 for a model without, never so few that a group of samples (prompt's
// copy and two samples) could not go on.
func slotsFor(free, perSlot int64) int {
	if perSlot == 0 {
		return 0
	}
	return max(3, int(min(mostSlots, free/4/perSlot)))
}

// leastCache is how many tokens a cache holds at least, if the model's context is
// that long: less would refuse what people ask for every day.
const leastCache = 4096

// newCache is a cache of the wanted number of tokens, or of as many as half of
// the free memory holds, but never fewer than least.
func newCache(dev kernels.Device, g *ir.Graph, tokens, least int) (*cache, error) {
	var perPage, perSlot int64
	for _, id := range g.Named(ir.ClassState) {
		perPage += g.Value(id).Type.Bytes(ir.Dims{P: 1})
		perSlot += g.Value(id).Type.Bytes(ir.Dims{L: 1})
	}
	pages, free := pagesFor(tokens), dev.Info().FreeBytes
	slots := slotsFor(free, perSlot)
	free -= int64(slots) * perSlot
	// More than half of what is free would leave no room for training.
	if most := free / 2 / max(perPage, 1); int64(pages) > most {
		pages = max(int(most), pagesFor(least))
	}
	if need := perPage * int64(pages); free < 0 || need > free {
		return nil, fmt.Errorf("%w: a key-value cache of %d tokens needs %s, %s are free; a smaller --context needs less", ErrNoFit, pages*pageTokens, size(need), size(max(free, 0)))
	}
	c := &cache{slots: slots, slotB: map[string]int64{}, dev: dev, states: map[string]kernels.Buffer{}, rowB: map[string]int64{}, pages: pages,
		refs: make([]int32, pages), known: map[prefix]int32{}, named: make([]prefix, pages)}
	for _, id := range g.Named(ir.ClassState) {
		v := g.Value(id)
		buf, err := alloc(dev, v.Type.Bytes(ir.Dims{P: pages, L: slots}), v.Name)
		if err != nil {
			c.release()
			return nil, err
		}
		c.states[v.Name] = buf
		if row := v.Type.Bytes(ir.Dims{L: 1}); row > 0 {
			c.slotB[v.Name] = row
		} else {
			c.rowB[v.Name] = v.Type.Bytes(ir.Dims{P: 1}) / pageTokens
		}
	}
	for s := slots - 1; s >= 0; s-- {
		c.freeSlots = append(c.freeSlots, int32(s))
	}
	for p := pages - 1; p >= 0; p-- {
		c.free = append(c.free, int32(p))
	}
	return c, nil
}

func pagesFor(tokens int) int { return (tokens + pageTokens - 1) / pageTokens }

func (c *cache) release() {
	for _, b := range c.states {
		b.Free()
	}
	c.states = nil
}

// take gives n pages, or nil when fewer can be had.
func (c *cache) take(n int) []int32 {
	if n > len(c.free)+len(c.idle) {
		return nil
	}
	for len(c.free) < n {
		p := c.idle[0]
		c.idle = c.idle[1:]
		delete(c.known, c.named[p])
		c.named[p] = prefix{}
		c.free = append(c.free, p)
	}
	at := len(c.free) - n
	pages := append([]int32{}, c.free[at:]...)
	c.free = c.free[:at]
	for _, p := range pages {
		c.refs[p] = 1
	}
	return pages
}

func (c *cache) share(pages []int32) {
	for _, p := range pages {
		c.refs[p]++
	}
}

func (c *cache) drop(pages []int32) {
	for _, p := range pages {
		if c.refs[p]--; c.refs[p] > 0 {
			continue
		}
		if c.named[p] != (prefix{}) {
			c.idle = append(c.idle, p)
		} else {
			c.free = append(c.free, p)
		}
	}
}

// chain calls fn with the prefix of each full page of tokens until it says no.
func chain(weights uint64, tokens []int32, fn func(page int, key prefix) bool) {
	var key prefix
	block := make([]byte, len(key)+8+4*pageTokens)
	for page := range len(tokens) / pageTokens {
		copy(block, key[:])
		binary.LittleEndian.PutUint64(block[len(key):], weights)
		for i, id := range tokens[page*pageTokens : (page+1)*pageTokens] {
			binary.LittleEndian.PutUint32(block[len(key)+8+4*i:], uint32(id))
		}
		sum := sha256.Sum256(block)
		copy(key[:], sum[:])
		if !fn(page, key) {
			return
		}
	}
}

// remember names the full pages of a sequence by their contents.
func (c *cache) remember(weights uint64, tokens, pages []int32) {
	chain(weights, tokens, func(i int, key prefix) bool {
		if _, ok := c.known[key]; !ok && c.named[pages[i]] == (prefix{}) {
			c.known[key] = pages[i]
			c.named[pages[i]] = key
		}
		return true
	})
}

// find shares the pages of the longest known prefix of tokens.
func (c *cache) find(weights uint64, tokens []int32) []int32 {
	var pages []int32
	chain(weights, tokens, func(_ int, key prefix) bool {
		p, ok := c.known[key]
		if ok {
			pages = append(pages, p)
		}
		return ok
	})
	for _, p := range pages {
		if c.refs[p]++; c.refs[p] == 1 {
			c.wake(p)
		}
	}
	return pages
}

// wake takes a page out of the idle ones.
func (c *cache) wake(p int32) {
	for i, q := range c.idle {
		if q == p {
			c.idle = append(c.idle[:i], c.idle[i+1:]...)
			return
		}
	}
}

// copyRows copies the first n rows of a page, keys and values of every layer.
func (c *cache) copyRows(dst, src int32, n int) error {
	for name, row := range c.rowB {
		buf := c.states[name]
		if err := c.dev.Copy(buf, int64(dst)*pageTokens*row, buf, int64(src)*pageTokens*row, int64(n)*row); err != nil {
			return err
		}
	}
	return nil
}

// takeSlot gives a row of recurrent state; ok is false when none is free. A
// model without such state needs none.
func (c *cache) takeSlot() (slot int32, ok bool) {
	if c.slots == 0 {
		return noSlot, true
	}
	n := len(c.freeSlots)
	if n == 0 {
		return noSlot, false
	}
	slot = c.freeSlots[n-1]
	c.freeSlots = c.freeSlots[:n-1]
	return slot, true
}

func (c *cache) dropSlot(slot int32) {
	if slot != noSlot {
		c.freeSlots = append(c.freeSlots, slot)
	}
}

// copySlot copies a sequence's recurrent state.
func (c *cache) copySlot(dst, src int32) error {
	if src == noSlot {
		return nil
	}
	for name, row := range c.slotB {
		buf := c.states[name]
		if err := c.dev.Copy(buf, int64(dst)*row, buf, int64(src)*row, row); err != nil {
			return err
		}
	}
	return nil
}
