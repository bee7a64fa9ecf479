package engine

import (
	"fmt"

	"smolgym/kernels"
	"smolgym/model/arch"
	"smolgym/model/ir"
)

// pageTokens is the size of a cache page.
const pageTokens = arch.Page

// cache is the paged key-value memory of one base model, shared by all samples
// of all weights on it. A page is held by the sequences whose tables name it;
// full pages of a prompt are shared between the samples of a group.
type cache struct {
	dev    kernels.Device
	states map[string]kernels.Buffer // "kv.k.<layer>", "kv.v.<layer>": [pages, page*kv_heads*head_dim]
	rowB   map[string]int64          // bytes of one token's row
	pages  int
	free   []int32
	refs   []int32
}

func newCache(dev kernels.Device, g *ir.Graph, tokens int) (*cache, error) {
	c := &cache{dev: dev, states: map[string]kernels.Buffer{}, rowB: map[string]int64{}, pages: pagesFor(tokens)}
	dims := ir.Dims{P: c.pages}
	var total int64
	for _, id := range g.Named(ir.ClassState) {
		total += g.Value(id).Type.Bytes(dims)
	}
	if free := dev.Info().FreeBytes; total > free {
		return nil, fmt.Errorf("%w: a key-value cache of %d tokens needs %s, %s are free; start the server with a smaller --context", ErrNoFit, tokens, size(total), size(free))
	}
	for _, id := range g.Named(ir.ClassState) {
		v := g.Value(id)
		buf, err := alloc(dev, v.Type.Bytes(dims), v.Name)
		if err != nil {
			c.release()
			return nil, err
		}
		c.states[v.Name] = buf
		c.rowB[v.Name] = v.Type.Bytes(ir.Dims{P: 1}) / pageTokens
	}
	c.refs = make([]int32, c.pages)
	for p := c.pages - 1; p >= 0; p-- {
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

// take gives n pages, or nil when fewer are free.
func (c *cache) take(n int) []int32 {
	if n > len(c.free) {
		return nil
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
		if c.refs[p]--; c.refs[p] == 0 {
			c.free = append(c.free, p)
		}
	}
}

// copyRows copies the first n rows of a page, keys and values of every layer.
func (c *cache) copyRows(dst, src int32, n int) error {
	for name, buf := range c.states {
		row := c.rowB[name]
		if err := c.dev.Copy(buf, int64(dst)*pageTokens*row, buf, int64(src)*pageTokens*row, int64(n)*row); err != nil {
			return err
		}
	}
	return nil
}
