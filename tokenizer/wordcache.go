package tokenizer

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync/atomic"
)

// wordCache keeps the ids of words seen lately. It is direct-mapped: a word has one slot and pushes out what was
// there, so it is bounded (cacheSlots words of at most maxCachedPiece bytes), needs no lock, and can't be slowed
// by what others encode. It never changes a result.
type wordCache struct {
	seed  maphash.Seed
	slots [cacheSlots]atomic.Pointer[cachedWord]
}

const cacheSlots = 1 << 15

type cachedWord struct {
	word string
	ids  []int32
}

func newWordCache() *wordCache { return &wordCache{seed: maphash.MakeSeed()} }

func (c *wordCache) hash(word string) uint64 { return maphash.String(c.seed, word) }

func (c *wordCache) get(hash uint64, word string) ([]int32, bool) {
	e := c.slots[hash%cacheSlots].Load()
	if e == nil || e.word != word {
		return nil, false
	}
	return e.ids, true
}

// put copies word and ids: neither the text nor the result is kept alive.
func (c *wordCache) put(hash uint64, word string, ids []int32) {
	c.slots[hash%cacheSlots].Store(&cachedWord{strings.Clone(word), slices.Clone(ids)})
}
