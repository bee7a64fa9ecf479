package engine

import (
	"smolgym/kernels"
	"smolgym/model/ir"
)

// touchPiece is how many bytes are written for the first time, cleared or copied
// between two questions whether decoding is due: about a millisecond's work.
const touchPiece = 2 << 20

var blank [touchPiece]byte

// touchArena writes the parts of the arena that a run will use for the first time.
// The system gives memory at the first write, which takes far longer than later
// ones: an op that meets many new pages would keep decoding from the device.
func (w *workspace) touchArena(p *ir.Program, dims ir.Dims, yield func(between bool) error) error {
	for i := range p.Steps {
		n := &p.Graph.Nodes[p.Steps[i].Node]
		for k, r := range p.Steps[i].Out {
			bytes := p.Graph.Value(n.Out[k]).Type.Bytes(dims)
			if r.Space == ir.External || bytes == 0 {
				continue
			}
			for piece := r.Offset / touchPiece; piece <= (r.Offset+bytes-1)/touchPiece; piece++ {
				if w.touched[piece] {
					continue
				}
				from := piece * touchPiece
				if err := clearPieces(w.dev, w.arena, from, min(from+touchPiece, w.arena.Size()), yield); err != nil {
					return err
				}
				w.touched[piece] = true
			}
		}
	}
	return nil
}

// clearPieces writes zeros from one byte up to another.
func clearPieces(dev kernels.Device, b kernels.Buffer, from, to int64, yield func(between bool) error) error {
	for ; from < to; from += touchPiece {
		if err := dev.Write(b, from, blank[:min(touchPiece, to-from)]); err != nil {
			return err
		}
		if err := yield(false); err != nil {
			return err
		}
	}
	return nil
}

// copyPieces copies the first bytes of a buffer.
func copyPieces(dev kernels.Device, dst, src kernels.Buffer, bytes int64, yield func(between bool) error) error {
	for at := int64(0); at < bytes; at += touchPiece {
		if err := dev.Copy(dst, at, src, at, min(touchPiece, bytes-at)); err != nil {
			return err
		}
		if err := yield(false); err != nil {
			return err
		}
	}
	return nil
}
