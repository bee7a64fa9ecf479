package hub

import (
	"encoding/binary"
	"errors"
)

// errLZ4 is returned for a frame that can't be right.
var errLZ4 = errors.New("malformed lz4 frame")

const lz4Magic = 0x184D2204

// lz4Frame unpacks one LZ4 frame of at most limit bytes. The checksums in it are passed over: what is unpacked here is
// part of a file whose sha256 is checked.
func lz4Frame(b []byte, limit int) ([]byte, error) {
	if len(b) < 7 || binary.LittleEndian.Uint32(b) != lz4Magic {
		return nil, errLZ4
	}
	flags := b[4]
	if flags>>6 != 1 || flags&2 != 0 || flags&1 != 0 { // version; reserved; dictionary
		return nil, errLZ4
	}
	at := 6
	if flags&8 != 0 { // content size
		at += 8
	}
	at++ // checksum of the header
	linked, blockSum := flags&0x20 == 0, flags&0x10 != 0
	out := make([]byte, 0, min(limit, 4*len(b)))
	for {
		if at+4 > len(b) {
			return nil, errLZ4
		}
		head := binary.LittleEndian.Uint32(b[at:])
		at += 4
		if head == 0 {
			return out, nil // a checksum of the content may follow
		}
		n := int(head & 0x7fffffff)
		if n > len(b)-at {
			return nil, errLZ4
		}
		start := len(out)
		if linked {
			start = 0
		}
		if head>>31 != 0 { // stored
			if n > limit-len(out) {
				return nil, errLZ4
			}
			out = append(out, b[at:at+n]...)
		} else {
			var err error
			if out, err = lz4Block(out, start, b[at:at+n], limit); err != nil {
				return nil, err
			}
		}
		at += n
		if blockSum {
			at += 4
		}
	}
}

// lz4Block appends what a block unpacks to. Matches reach back to out[start:].
func lz4Block(out []byte, start int, b []byte, limit int) ([]byte, error) {
	at := 0
	// length reads the bytes that continue a length of 15.
	length := func(n int) (int, bool) {
		if n != 15 {
			return n, true
		}
		for at < len(b) {
			c := int(b[at])
			at++
			n += c
			if c != 255 {
				return n, true
			}
			if n > limit {
				return 0, false
			}
		}
		return 0, false
	}
	for at < len(b) {
		token := b[at]
		at++
		literals, ok := length(int(token >> 4))
		if !ok || literals > len(b)-at || literals > limit-len(out) {
			return nil, errLZ4
		}
		out = append(out, b[at:at+literals]...)
		at += literals
		if at == len(b) { // the last sequence has no match
			return out, nil
		}
		if at+2 > len(b) {
			return nil, errLZ4
		}
		back := int(binary.LittleEndian.Uint16(b[at:]))
		at += 2
		match, ok := length(int(token & 15))
		if !ok || back == 0 || back > len(out)-start || match+4 > limit-len(out) {
			return nil, errLZ4
		}
		for from := len(out) - back; match+4 > 0; match-- { // may overlap what it writes
			out = append(out, out[from])
			from++
		}
	}
	return nil, errLZ4
}
