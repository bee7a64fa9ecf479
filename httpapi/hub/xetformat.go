package hub

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Bounds of the Xet formats.
const (
	maxXorb       = 80 << 20  // bytes; clients fill 64 MiB and add heads
	maxChunk      = 256 << 10 // unpacked; clients cut at 128 KiB
	maxChunks     = 64 << 10  // of a xorb; clients cut from 8 KiB on
	maxShard      = 64 << 20
	maxSegments   = 1 << 20 // of all files of a shard
	xorbChunkHead = 8
)

var errXorb = errors.New("malformed xorb")

var le = binary.LittleEndian

// hashName prints a 32-byte hash the way addresses carry it: four little-endian words, each in 16 digits.
func hashName(b []byte) string {
	return fmt.Sprintf("%016x%016x%016x%016x", le.Uint64(b), le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint64(b[24:]))
}

// chunkAt is where a chunk lies in a xorb.
type chunkAt struct {
	offset   int64 // of its packed bytes
	packed   int
	unpacked int
	kind     byte // 0 stored, 1 LZ4, 2 LZ4 of bytes grouped by their place mod 4
}

// indexXorb finds the chunks of a xorb without unpacking them.
func indexXorb(r io.Reader) ([]chunkAt, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	var list []chunkAt
	var at int64
	for {
		head, err := in.Peek(xorbChunkHead)
		if len(head) < xorbChunkHead || string(head[:7]) == "XETBLOB" { // a foot may follow the chunks
			if err != nil && !errors.Is(err, io.EOF) {
				return nil, err
			}
			if len(list) == 0 || len(head) > 0 && len(head) < xorbChunkHead {
				return nil, errXorb
			}
			return list, nil
		}
		c := chunkAt{at + xorbChunkHead, int(le.Uint32(head) >> 8), int(le.Uint32(head[4:]) >> 8), head[4]}
		if head[0] != 0 || c.kind > 2 || c.unpacked > maxChunk || c.packed > 2*maxChunk || len(list) >= maxChunks {
			return nil, errXorb
		}
		if c.kind == 0 && c.packed != c.unpacked {
			return nil, errXorb
		}
		if _, err := in.Discard(xorbChunkHead + c.packed); err != nil {
			if errors.Is(err, io.EOF) {
				err = errXorb
			}
			return nil, err
		}
		at += int64(xorbChunkHead + c.packed)
		list = append(list, c)
	}
}

// unpack gives the content of a chunk.
func (c chunkAt) unpack(packed []byte) ([]byte, error) {
	d := packed
	if c.kind > 0 {
		var err error
		if d, err = lz4Frame(packed, c.unpacked); err != nil {
			return nil, err
		}
	}
	if len(d) != c.unpacked {
		return nil, errXorb
	}
	if c.kind == 2 {
		d = ungroup(d)
	}
	return d, nil
}

// ungroup undoes the grouping: all bytes at 0 mod 4, then those at 1 mod 4, and so on.
func ungroup(d []byte) []byte {
	out := make([]byte, len(d))
	p := 0
	for g := range 4 {
		for i := g; i < len(d); i += 4 {
			out[i] = d[p]
			p++
		}
	}
	return out
}

// segment is a run of chunks of one xorb.
type segment struct {
	xorb       string
	start, end uint32 // chunks
	bytes      uint32
}

// shardFile is a file as chunks.
type shardFile struct {
	sha256   string
	segments []segment
}

func (f *shardFile) size() (n int64) {
	for _, s := range f.segments {
		n += int64(s.bytes)
	}
	return n
}

var errShard = errors.New("malformed shard")

// readShard reads the files of a shard; the rest of it describes xorbs and is not needed.
func readShard(b []byte) ([]shardFile, error) {
	const row = 48
	if len(b) < 2*row || string(b[:14]) != "HFRepoMetaData" || le.Uint64(b[32:]) != 2 {
		return nil, errShard
	}
	at, segments := row, 0
	next := func() []byte {
		if at+row > len(b) {
			return nil
		}
		at += row
		return b[at-row : at]
	}
	end := bytes.Repeat([]byte{0xff}, 32)
	var list []shardFile
	for {
		head := next()
		if head == nil {
			return nil, errShard
		}
		if bytes.Equal(head[:32], end) {
			return list, nil
		}
		flags, n := le.Uint32(head[32:]), int(le.Uint32(head[36:]))
		if segments += n; n < 0 || segments > maxSegments || n > (len(b)-at)/row {
			return nil, errShard
		}
		f := shardFile{segments: make([]segment, 0, n)}
		for range n {
			e := next()
			if e == nil {
				return nil, errShard
			}
			f.segments = append(f.segments, segment{hashName(e), le.Uint32(e[40:]), le.Uint32(e[44:]), le.Uint32(e[36:])})
		}
		if flags&(1<<31) != 0 { // a check of each segment
			for range n {
				if next() == nil {
					return nil, errShard
				}
			}
		}
		if flags&(1<<30) != 0 {
			m := next()
			if m == nil {
				return nil, errShard
			}
			f.sha256 = hashName(m)
		}
		list = append(list, f)
	}
}
