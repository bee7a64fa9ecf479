package engine

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"smolgym/kernels"
	"smolgym/model/ir"
	"smolgym/model/lora"
)

// stepBatch is one decoding step laid out for the program.
type stepBatch struct {
	seqs                                 []*sequence
	take                                 []int // tokens fed of each sequence
	ids, positions, offsets, start, rows []int32
	slots                                []int32 // rows of recurrent state
	of, owner                            []int   // index into seqs for each token and each row
	blocks                               int     // block-table columns
}

// step decodes one batch.
func (d *decoder) step() {
	began := time.Now()
	d.admit()
	if len(d.run) > 0 {
		seqs := d.pick()
		if err := d.forward(seqs); err != nil {
			for _, s := range seqs {
				if !s.j.ended {
					d.fail(s.j, err)
				}
			}
		}
	}
	d.e.lastDecode = time.Since(began)
	d.e.idleSince = time.Now()
}

// rowLimit keeps the logits of a step, float32[rows, vocabulary], near 64 MiB.
func (d *decoder) rowLimit(vocab int) int {
	return max(d.e.opt.DecodeSequences, min(d.e.opt.DecodeTokens, (16<<20)/max(vocab, 1)))
}

// piece is what a step feeds of a sequence.
type piece struct {
	s *sequence
	n int // tokens
}

// lay packs as much of the sequences as a step holds: every decoding sequence's
// token first, then pieces of prompts. Sequences of one set of weights stand
// together.
func (d *decoder) lay(seqs []*sequence) *stepBatch {
	opt := d.e.opt
	rowLimit := d.rowLimit(seqs[0].j.weights.b.info.Vocab)
	var pieces []piece
	tokens, rows := 0, 0
	seqs = d.interleave(seqs)
	for _, prompts := range []bool{false, true} {
		for _, s := range seqs {
			if (s.index < 0) != prompts || len(pieces) == opt.DecodeSequences {
				continue
			}
			n := min(len(s.feed), opt.DecodeTokens-tokens)
			if s.index < 0 && s.j.scoresPrompt() {
				n = min(n, rowLimit-rows)
			}
			if n <= 0 || rows >= rowLimit {
				continue
			}
			pieces = append(pieces, piece{s, n})
			tokens += n
			for i := range n {
				if s.rowAt(i, n) {
					rows++
				}
			}
		}
	}
	slices.SortStableFunc(pieces, func(a, b piece) int { return cmp.Compare(a.s.j.weights.id(), b.s.j.weights.id()) })
	b := &stepBatch{offsets: []int32{0}}
	for _, p := range pieces {
		b.add(p.s, p.n)
	}
	return b
}

// rowAt says whether anybody reads the row after token i of the next n.
func (s *sequence) rowAt(i, n int) bool {
	last := i == n-1 && n == len(s.feed)
	return last || (s.index < 0 && s.j.scoresPrompt() && s.cached+i+1 >= s.j.firstScored())
}

func (b *stepBatch) add(s *sequence, n int) {
	at := len(b.seqs)
	b.seqs, b.take = append(b.seqs, s), append(b.take, n)
	b.start, b.slots = append(b.start, int32(s.cached)), append(b.slots, s.slot)
	for i := range n {
		b.ids = append(b.ids, s.feed[i])
		b.positions = append(b.positions, int32(s.cached+i))
		b.of = append(b.of, at)
		if s.rowAt(i, n) {
			b.rows = append(b.rows, int32(len(b.ids)-1))
			b.owner = append(b.owner, at)
		}
	}
	b.offsets = append(b.offsets, int32(len(b.ids)))
	b.blocks = max(b.blocks, pagesFor(s.cached+n))
}

// table is the page table [S,B] of the batch.
func (b *stepBatch) table() []int32 {
	table := make([]int32, len(b.seqs)*b.blocks)
	for i, s := range b.seqs {
		copy(table[i*b.blocks:(i+1)*b.blocks], s.pages)
	}
	return table
}

// forward runs a step and hands each row to its sequence.
func (d *decoder) forward(seqs []*sequence) error {
	e, w := d.e, seqs[0].j.weights
	base := w.b
	batch := d.lay(seqs)
	rows := batch.rows
	if len(rows) == 0 {
		rows = []int32{0} // a piece of a prompt that nobody reads a row of
	}
	// Capacity leaves room for every page of one context in the table.
	capacity := ir.Dims{T: e.opt.DecodeTokens, S: e.opt.DecodeSequences, R: d.rowLimit(base.info.Vocab), C: 1, P: base.cache.pages, B: pagesFor(base.info.Context), L: base.cache.slots}
	prog, resolve, err := d.bind(seqs, batch, rows, capacity)
	if err != nil {
		return err
	}
	for name, v := range map[string][]int32{
		"ids": batch.ids, "positions": batch.positions, "offsets": batch.offsets, "start": batch.start, "slot": batch.slots, "table": batch.table(), "rows": rows,
	} {
		if err := e.decode.setI32(name, v); err != nil {
			return err
		}
	}
	dims := ir.Dims{T: len(batch.ids), S: len(batch.seqs), R: len(rows), C: 1, P: base.cache.pages, B: batch.blocks, L: base.cache.slots}
	lookup := func(s ir.Slot) kernels.Buffer {
		if buf, ok := base.cache.states[s.Name]; ok {
			return buf
		}
		return resolve(s.Name)
	}
	if err := e.decode.run(prog, dims, lookup, nil); err != nil {
		return err
	}
	logits, chosen, err := d.draw(batch, base.info.Vocab)
	if err != nil {
		return err
	}
	lse, err := e.decode.getF32("lse", len(batch.rows))
	if err != nil {
		return err
	}
	d.countStep(batch)
	d.deliver(batch, logits, lse, chosen)
	return nil
}

// bind finds the program of a step and where its weights are.
func (d *decoder) bind(seqs []*sequence, batch *stepBatch, rows []int32, capacity ir.Dims) (*ir.Program, func(string) kernels.Buffer, error) {
	e, w := d.e, seqs[0].j.weights
	if w.alone {
		key := decodeKey{}
		if l := w.cfg.LoRA; l != nil {
			key = decodeKey{l.Rank, l.Alpha, w.cfg.Attention, w.cfg.MLP, w.cfg.Unembed}
		}
		prog, err := w.b.decodeProgram(key, capacity, func() (*ir.Graph, error) {
			g, _, err := w.b.variant(w.b.decode.Graph, w.cfg)
			return g, err
		})
		return prog, w.lookup, err
	}
	m, err := w.b.mixed(seqs)
	if err != nil {
		return nil, nil, err
	}
	owner := batch.owner
	if len(owner) == 0 {
		owner = make([]int, len(rows)) // a row that nobody reads
	}
	for _, in := range []struct {
		place, scale string
		of           []int
	}{{lora.PlaceInput, lora.ScaleInput, batch.of}, {lora.RowPlaceInput, lora.RowScaleInput, owner}} {
		place, scale := m.places(batch.seqs, in.of)
		if err := errors.Join(e.decode.setI32(in.place, place), e.decode.setF32(in.scale, scale)); err != nil {
			return nil, nil, err
		}
	}
	prog, err := m.program(w.b, capacity)
	return prog, func(name string) kernels.Buffer {
		if name == lora.GroupInput {
			return m.group
		}
		return w.b.weights[name]
	}, err
}

func (d *decoder) countStep(b *stepBatch) {
	d.e.count(func(s *Stats) {
		s.DecodeSteps++
		s.DecodeSequences += int64(len(b.seqs))
		s.MaxDecodeBatch = max(s.MaxDecodeBatch, len(b.seqs))
		mix := 0
		for i, seq := range b.seqs {
			if i == 0 || seq.j.weights.id() != b.seqs[i-1].j.weights.id() {
				mix++
			}
			if seq.index < 0 {
				s.PrefillTokens += int64(b.take[i])
			}
		}
		s.MaxDecodeMix = max(s.MaxDecodeMix, mix)
	})
}

// draw reads the step's logits and draws the next token of every decoding sequence, on
// as many threads as the device has: over a large vocabulary a row takes a millisecond.
// The logits are good until the next step.
func (d *decoder) draw(b *stepBatch, vocab int) (logits []float32, chosen []int32, err error) {
	n := len(b.owner) * vocab
	d.raw, d.logits = slices.Grow(d.raw[:0], 4*n)[:4*n], slices.Grow(d.logits[:0], n)[:n]
	if n == 0 {
		return nil, nil, nil
	}
	if err := d.e.dev.Read(d.raw, d.e.decode.named["logits"], 0); err != nil {
		return nil, nil, err
	}
	chosen = make([]int32, len(b.owner))
	var next atomic.Int64
	var group sync.WaitGroup
	for range min(d.e.threads, len(b.owner)) {
		group.Go(func() {
			for row := int(next.Add(1)) - 1; row < len(b.owner); row = int(next.Add(1)) - 1 {
				from, to := row*vocab, (row+1)*vocab
				fillF32(d.logits[from:to], d.raw[4*from:4*to])
				if s := b.seqs[b.owner[row]]; s.index >= 0 {
					chosen[row] = s.choose(d.logits[from:to])
				}
			}
		})
	}
	group.Wait()
	return d.logits, chosen, nil
}

// deliver hands the rows out in the order of the batch.
func (d *decoder) deliver(b *stepBatch, logits, lse []float32, chosen []int32) {
	if len(b.seqs) == 0 {
		return
	}
	vocab := b.seqs[0].j.weights.b.info.Vocab
	row := 0
	for i, s := range b.seqs {
		first := s.cached
		s.cached += b.take[i]
		s.feed = s.feed[b.take[i]:]
		for ; row < len(b.owner) && b.owner[row] == i; row++ {
			if s.j.ended {
				continue // failed earlier in this batch
			}
			r := logits[row*vocab : (row+1)*vocab]
			position := first + int(b.rows[row]-b.offsets[i])
			if s.index >= 0 {
				d.token(s, chosen[row], r, lse[row])
				continue
			}
			s.j.score(position, r, lse[row])
			if position == len(s.j.Prompt)-1 {
				d.prefilled(s, r, lse[row])
			}
		}
	}
}
